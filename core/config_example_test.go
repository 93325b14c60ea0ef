package sentinel_test

import (
	"fmt"

	sentinel "github.com/sentinelgo/sentinel/core"
)

func ExampleLoadConfig() {
	config, err := sentinel.LoadConfig("testdata/config/working_ancestor_example.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	login := config.Policies["auth.login"]
	fmt.Println(login.Algorithm, login.Capacity/sentinel.Token, login.FailMode, login.Identity)
	fmt.Println(config.App.RedisURL)
	// Output:
	// token_bucket 1 fail_open anonymous
	// [redacted]
}

func ExampleParseConfig() {
	_, err := sentinel.ParseConfig([]byte(`{
	  "app": {
	    "redis_url": "redis://:s#cret@redis:6379/0",
	    "jwt_secret": "too short"
	  },
	  "policies": {
	    "auth.login": {
	      "endpoint_id": "auth.login",
	      "algorithm": "token_bucket",
	      "fail_mode": "fail_open",
	      "fallback_per_second": 5,
	      "policy_version": 1,
	      "capcity": 10,
	      "refill_per_second": 0.5,
	      "window_size_micro": 60000000
	    }
	  }
	}`))
	fmt.Println(err)
	// Output:
	// app.redis_url: holds a #, after which nothing would count; write special characters of user name and password percent-encoded (%40 for @, %23 for #, %2F for /, %3F for ?, %25 for %)
	// app.jwt_secret: is too short; at least 32 bytes
	// policies["auth.login"].capcity: is unknown; did you mean capacity?
	// policies["auth.login"].window_size_micro: only for sliding_window; remove it or change algorithm
}
