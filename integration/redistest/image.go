package redistest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// pullTimeout bounds finding Docker, and pulling or making an image.
const pullTimeout = 2 * time.Minute

// findImage returns an image that is there: the one that SENTINEL_REDIS_IMAGE
// names, else redis:7-alpine, else one made here.
func findImage(ctx context.Context, docker *testcontainers.DockerProvider) (string, error) {
	wanted := os.Getenv("SENTINEL_REDIS_IMAGE")
	image := wanted
	if image == "" {
		image = "redis:7-alpine"
	}
	if have(ctx, docker, image) {
		return image, nil
	}
	pullErr := docker.PullImage(ctx, image)
	if pullErr == nil && !have(ctx, docker, image) {
		pullErr = errors.New("the download broke off")
	}
	if pullErr == nil {
		return image, nil
	}
	pullErr = fmt.Errorf("redistest: pull %s: %w", image, pullErr)
	if wanted != "" {
		return "", fmt.Errorf("%w; SENTINEL_REDIS_IMAGE must name an image that can be had", pullErr)
	}
	// The pull may have used up the time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pullTimeout)
	defer cancel()
	made, err := makeImage(ctx, docker)
	if err != nil {
		return "", fmt.Errorf("%w; and no image can be made here: %w", pullErr, err)
	}
	return made, nil
}

func have(ctx context.Context, docker *testcontainers.DockerProvider, image string) bool {
	_, err := docker.Client().ImageInspect(ctx, image)
	return err == nil
}

// makeImage makes an image of the machine's redis-server and the libraries that
// it links, unless one of exactly these files is there already.
func makeImage(ctx context.Context, docker *testcontainers.DockerProvider) (string, error) {
	binary, err := serverBinary()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "ldd", binary).Output()
	if err != nil {
		return "", fmt.Errorf("redistest: ldd %s: %w", binary, err)
	}
	root, err := packFiles(binary, libraries(string(out)))
	if err != nil {
		return "", fmt.Errorf("redistest: pack %s: %w", binary, err)
	}
	sum := sha256.Sum256(root)
	image := "sentinel-redistest:" + hex.EncodeToString(sum[:8])
	if have(ctx, docker, image) {
		return image, nil
	}
	source := client.ImageImportSource{SourceName: "-", Source: bytes.NewReader(root)}
	resp, err := docker.Client().ImageImport(ctx, source, image, client.ImageImportOptions{
		Changes: []string{"ENV PATH=/usr/bin"},
	})
	if err == nil {
		_, err = io.Copy(io.Discard, resp)
		err = errors.Join(err, resp.Close())
	}
	if err == nil && !have(ctx, docker, image) {
		err = errors.New("it was not kept")
	}
	if err != nil {
		return "", fmt.Errorf("redistest: import %s: %w", image, err)
	}
	return image, nil
}

// libraries returns the absolute paths in the output of ldd: those behind "=>",
// and the loader, which stands alone. The kernel's vdso has none.
func libraries(ldd string) []string {
	var paths []string
	for line := range strings.Lines(ldd) {
		for field := range strings.FieldsSeq(line) {
			if strings.HasPrefix(field, "/") {
				paths = append(paths, field)
			}
		}
	}
	return paths
}

// packFiles returns a tar of the server as /usr/bin/redis-server and of its
// libraries under their own names. The same files give the same bytes.
func packFiles(binary string, libs []string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(name, path string) error {
		content, err := os.ReadFile(path) // follows links, so that the tar needs none
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: 0o755, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	}
	if err := add("/usr/bin/redis-server", binary); err != nil {
		return nil, err
	}
	for _, lib := range libs {
		if err := add(lib, lib); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
