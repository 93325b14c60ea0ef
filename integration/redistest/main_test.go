package redistest

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// abandonEnv makes this test binary start a server and exit without cleaning up.
const abandonEnv = "REDISTEST_ABANDON"

func TestMain(m *testing.M) {
	if os.Getenv(abandonEnv) != "" {
		abandon()
	}
	Main(m)
}

func abandon() {
	p, err := findProvider()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	inst, err := p.start(context.Background(), flagsFor(nil))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("abandoned", inst.addr())
	os.Exit(2)
}
