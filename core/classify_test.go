package sentinel

import (
	"errors"
	"strings"
	"testing"
)

// errorReply is an error reply of a server, as go-redis hands it on.
type errorReply string

func (e errorReply) Error() string { return string(e) }

// RedisError makes it a redis.Error.
func (errorReply) RedisError() {}

// A replica is known by what it says, also in the middle of what Redis 6 makes of
// an error within a script.
func TestIsReplica(t *testing.T) {
	for err, want := range map[error]bool{
		errorReply("READONLY You can't write against a read only replica."): true,
		errorReply("ERR Error running script (call to f_4e6d8fc8bb01276962cce5371fa795a7763657ae): @user_script:94: @user_script: 94: -READONLY You can't write against a read only replica. "):  true,
		errorReply("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."):                                                                                           true,
		errorReply("ERR Error running script (call to f_4e6d8fc8bb01276962cce5371fa795a7763657ae): @user_script:94: @user_script: 94: -OOM command not allowed when used memory > 'maxmemory'."): false,
		errorReply("LOADING Redis is loading the dataset in memory"):                                                                                                                             false,
		errors.New("READONLY"): false,
		nil:                    false,
	} {
		if got := isReplica(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

// What a Redis Sentinel of any age answers to a user that it does not know.
func TestUnfitSentinelSaysWhatIsWrongWithTheUser(t *testing.T) {
	for _, text := range []string{
		"WRONGPASS invalid username-password pair or user is disabled.",
		"ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
		"ERR wrong number of arguments for 'auth' command",
	} {
		if got := unfitSentinel(errorReply(text)); !strings.Contains(got, "refuse sentinel_username or sentinel_password") {
			t.Errorf("%q: %q", text, got)
		}
	}
}
