//go:build !race

// The race detector makes pools forgetful.

package sentinel

import (
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

// noClaims are read and forgotten.
type noClaims struct{ jwt.MapClaims }

func (noClaims) UnmarshalJSON([]byte) error { return nil }

// Beside what the library allocates to read a token there is the tenant.
func TestVerifyAllocations(t *testing.T) {
	v := testVerifier("HS256")
	token := hs256(`{"sub":"acme","exp":1790000060,"iat":1790000000,"nbf":1790000000}`)
	authorization := []string{"Bearer " + token}
	library := jwt.NewParser(jwt.WithStrictDecoding())
	forced := testing.AllocsPerRun(100, func() {
		if _, _, err := library.ParseUnverified(token, &noClaims{}); err != nil {
			t.Error(err)
		}
	})
	ours := testing.AllocsPerRun(100, func() {
		if _, failure := v.verify(authorization, tokenNow); failure != "" {
			t.Error(failure)
		}
	})
	// A collection may take a desk away.
	if ours >= forced+2 {
		t.Errorf("%v allocations, the library alone %v", ours, forced)
	}
}
