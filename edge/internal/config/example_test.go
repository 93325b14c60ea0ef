package config_test

import (
	"fmt"

	"github.com/sentinelgo/sentinel/edge/internal/config"
)

// All that is wrong with a file is said at once, each at its line.
func ExampleParse() {
	_, err := config.Parse("edge.yaml", []byte(`
routes:
  - path: /users/:id
    backend: user
  - path: /users/:name
    backend: users
backends:
  - name: users
    url: localhost:9001
    health: {interval: 1s, timeout: 2s}
`), nil)
	fmt.Println(err)
	// Output:
	// edge.yaml:4: routes[0].backend: there is no backend with this name; the names are users
	// edge.yaml:5: routes[1].path: /users/:name takes the paths that /users/:id takes; give their parameters the same names (the other is routes[0] on line 3)
	// edge.yaml:9: backends[0].url: must begin with http:// or https://
	// edge.yaml:10: backends[0].health.timeout: is 2s, longer than the interval of 1s
}
