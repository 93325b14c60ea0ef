package integration_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	sentinel "github.com/sentinelgo/sentinel/core"
)

// workerEnv makes this test binary a process of its own that takes from one
// bucket and prints how often it was admitted.
const workerEnv = "SENTINEL_TEST_WORKER"

// TestWorkerProcess is the body of such a process; by itself it does nothing.
func TestWorkerProcess(t *testing.T) {
	job := os.Getenv(workerEnv)
	if job == "" {
		return
	}
	var url, tenant string
	if _, err := fmt.Sscanf(job, "%s %s", &url, &tenant); err != nil {
		t.Fatal(err)
	}
	l, err := sentinel.Open(context.Background(), config(url, tokens("shared", 100*sentinel.Token, 0)), options()...)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	admitted := 0
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 5 {
				if allow(t, l, tenant, "shared").Allowed {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	fmt.Printf("admitted %d\n", admitted)
}

// Three processes on one bucket admit exactly its capacity between them.
func TestThreeProcesses(t *testing.T) {
	_, url := shared(t)
	tenant := strings.ReplaceAll(fresh(t), " ", "_")
	var wg sync.WaitGroup
	counts := make([]int, 3)
	for i := range counts {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$", "-test.v")
			cmd.Env = append(os.Environ(), workerEnv+"="+url+" "+tenant)
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("process %d: %v\n%s", i, err, out)
				return
			}
			for sc := bufio.NewScanner(strings.NewReader(string(out))); sc.Scan(); {
				_, _ = fmt.Sscanf(sc.Text(), "admitted %d", &counts[i])
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	if total != 100 {
		t.Errorf("admitted %v, together %d, want 100", counts, total)
	}
}
