package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// errNoDocker means that there is no Docker to ask.
var errNoDocker = errors.New("redistest: Docker is not usable")

// ownerLabel marks our containers with "host/pid" of the test binary, so that
// the next run can remove what a killed one left behind.
const ownerLabel = "com.github.sentinelgo.redistest.owner"

// containers starts servers as containers, through testcontainers-go.
type containers struct {
	docker *testcontainers.DockerProvider
	image  string
	host   string // where the ports that Docker publishes are reached
}

func newContainers() (provider, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	defer cancel()
	setDefaults()
	docker, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(log.NewNoopLogger()))
	if err == nil {
		err = docker.Health(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDocker, err)
	}
	image, err := findImage(ctx, docker)
	if err != nil {
		return nil, err
	}
	host, err := publishedHost(ctx, docker)
	if err != nil {
		return nil, fmt.Errorf("redistest: where Docker publishes its ports: %w", err)
	}
	c := containers{docker: docker, image: image, host: host}
	if err := c.sweep(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "redistest: removing containers of an earlier run:", err)
	}
	fmt.Fprintf(os.Stderr, "redistest: Redis runs in containers of %s\n", image)
	return c, nil
}

// setDefaults sets what testcontainers-go reads from the environment, where the
// user has not. Its own cleaner is a second image to pull, which a machine
// without a registry cannot; sweep does that work here.
func setDefaults() {
	log.SetDefault(log.NewNoopLogger())
	if _, ok := os.LookupEnv("TESTCONTAINERS_RYUK_DISABLED"); !ok {
		_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // fails only for a malformed name
	}
}

// publishedHost is where a published port is reached. A daemon behind a local
// socket publishes on this machine; testcontainers-go would dial the bridge's
// gateway as soon as it believes itself in a container, which is right only
// where the socket belongs to another machine: there the user sets
// TESTCONTAINERS_HOST_OVERRIDE.
func publishedHost(ctx context.Context, docker *testcontainers.DockerProvider) (string, error) {
	if _, ok := os.LookupEnv("TESTCONTAINERS_HOST_OVERRIDE"); !ok {
		daemon, err := url.Parse(docker.Client().DaemonHost())
		if err != nil {
			return "", err
		}
		if daemon.Scheme == "unix" || daemon.Scheme == "npipe" {
			_ = os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1") // as above
		}
	}
	return docker.DaemonHost(ctx)
}

// start publishes the server on a port that is chosen here and not by Docker,
// which would give a restarted container another one.
func (c containers) start(ctx context.Context, flags []string) (instance, error) {
	var err error
	for range 5 {
		var port string
		if port, err = freePort(); err != nil {
			break
		}
		var s *dockerized
		if s, err = c.run(ctx, port, flags); err == nil {
			return s, nil
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "port is already allocated") &&
			!strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	return nil, err
}

// run makes and starts one container. It leaves nothing behind if that fails.
func (c containers) run(ctx context.Context, port string, flags []string) (*dockerized, error) {
	const inside = "6379"
	binding := network.PortBinding{HostPort: port}
	if ip, err := netip.ParseAddr(c.host); err == nil && ip.IsLoopback() {
		binding.HostIP = ip // reachable from this machine alone
	}
	created, err := c.docker.CreateContainer(ctx, testcontainers.ContainerRequest{
		Image:        c.image,
		Cmd:          append([]string{"redis-server", "--port", inside, "--protected-mode", "no"}, flags...),
		ExposedPorts: []string{inside + "/tcp"},
		Labels:       map[string]string{ownerLabel: owner(os.Getpid())},
		HostConfigModifier: func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{network.MustParsePort(inside + "/tcp"): {binding}}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("redistest: create a container of %s: %w", c.image, err)
	}
	s := &dockerized{
		docker: c.docker.Client(), id: created.GetContainerID(),
		address: net.JoinHostPort(c.host, port),
	}
	if err := s.restart(ctx); err != nil {
		err = fmt.Errorf("redistest: %s: %w (TESTCONTAINERS_HOST_OVERRIDE says where Docker's ports are reached, if not at %s)", c.image, err, c.host)
		return nil, errors.Join(err, s.remove(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// sweep removes the containers of test binaries on this machine that are gone.
func (c containers) sweep(ctx context.Context) error {
	docker := c.docker.Client()
	list, err := docker.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", ownerLabel),
	})
	if err != nil {
		return err
	}
	for _, found := range list.Items {
		if abandoned(found.Labels[ownerLabel]) {
			// Another test binary may sweep at the same time, so that it is gone by now.
			_ = (&dockerized{docker: docker, id: found.ID}).remove(ctx)
		}
	}
	return nil
}

// owner is the value of ownerLabel for a process of this machine.
func owner(pid int) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "/" + strconv.Itoa(pid)
}

// abandoned says whether a label names a process of this machine that has ended.
func abandoned(label string) bool {
	_, number, _ := strings.Cut(label, "/")
	pid, err := strconv.Atoi(number)
	if err != nil || label != owner(pid) {
		return false
	}
	return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// dockerized is a server in a container that keeps its port.
type dockerized struct {
	docker  client.APIClient
	id      string
	address string
	paused  bool
}

func (s *dockerized) addr() string { return s.address }

func (s *dockerized) restart(ctx context.Context) error {
	if _, err := s.docker.ContainerStart(ctx, s.id, client.ContainerStartOptions{}); err != nil {
		return err
	}
	// A container that ends at once is seen by asking for its state, now and then.
	exited := make(chan struct{})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		defer close(exited)
		for s.running(ctx) {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}()
	return waitReady(ctx, s.address, exited)
}

func (s *dockerized) running(ctx context.Context) bool {
	got, err := s.docker.ContainerInspect(ctx, s.id, client.ContainerInspectOptions{})
	return err == nil && got.Container.State.Running
}

func (s *dockerized) kill(ctx context.Context) error {
	if !s.running(ctx) {
		return nil
	}
	s.paused = false
	_, err := s.docker.ContainerKill(ctx, s.id, client.ContainerKillOptions{Signal: "SIGKILL"})
	if err != nil {
		return err
	}
	return s.waitStopped(ctx)
}

// waitStopped returns when the container has ended and its port is closed.
func (s *dockerized) waitStopped(ctx context.Context) error {
	for s.running(ctx) {
		time.Sleep(5 * time.Millisecond)
	}
	return ctx.Err()
}

func (s *dockerized) stop(ctx context.Context) error {
	_, err := s.docker.ContainerStop(ctx, s.id, client.ContainerStopOptions{})
	return err
}

func (s *dockerized) pause(ctx context.Context) error {
	_, err := s.docker.ContainerPause(ctx, s.id, client.ContainerPauseOptions{})
	s.paused = err == nil
	return err
}

func (s *dockerized) resume(ctx context.Context) error {
	_, err := s.docker.ContainerUnpause(ctx, s.id, client.ContainerUnpauseOptions{})
	s.paused = err != nil
	return err
}

func (s *dockerized) remove(ctx context.Context) error {
	if s.paused { // Docker does not remove what is paused
		if err := s.resume(ctx); err != nil {
			return err
		}
	}
	_, err := s.docker.ContainerRemove(ctx, s.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return err
}
