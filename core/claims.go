package sentinel

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// claims are those of a token that decide anything here, read exactly as into a
// [jwt.MapClaims], which costs far more: of equal names the last one counts,
// names have one case (encoding/json would take "SUB" for a field sub), 0 is no
// date, and a number beyond a float64 spoils the whole text, wherever it stands.
// Which claim names the tenant must be set before it is read into.
type claims struct {
	tenantClaim string // its name, usually sub
	planClaim   string // the plan's; "" for none
	reads       bool   // iss and aud, too

	plan          string
	tenant        string
	tenantErr     error
	exp, nbf, iat claimedDate
	iss           string
	issErr        error
	aud           jwt.ClaimStrings
	audErr        error
}

// claimedDate is missing, a date, or something else, which is an error.
type claimedDate struct {
	date    jwt.NumericDate
	present bool
	err     error
}

func (d *claimedDate) get() (*jwt.NumericDate, error) {
	if !d.present {
		return nil, d.err
	}
	return &d.date, nil
}

// GetExpirationTime implements [jwt.Claims].
func (c *claims) GetExpirationTime() (*jwt.NumericDate, error) { return c.exp.get() }

// GetNotBefore implements [jwt.Claims].
func (c *claims) GetNotBefore() (*jwt.NumericDate, error) { return c.nbf.get() }

// GetIssuedAt implements [jwt.Claims].
func (c *claims) GetIssuedAt() (*jwt.NumericDate, error) { return c.iat.get() }

// GetSubject implements [jwt.Claims]; who is counted is the claim that names
// the tenant, whichever it is.
func (c *claims) GetSubject() (string, error) { return c.tenant, c.tenantErr }

// GetIssuer implements [jwt.Claims].
func (c *claims) GetIssuer() (string, error) { return c.iss, c.issErr }

// GetAudience implements [jwt.Claims].
func (c *claims) GetAudience() (jwt.ClaimStrings, error) {
	if c.audErr != nil {
		return nil, c.audErr
	}
	return c.aud, nil
}

var errNoObject = errors.New("the claims are no object")

// UnmarshalJSON implements [json.Unmarshaler], so text is JSON: it only has to
// be cut in the right places.
func (c *claims) UnmarshalJSON(text []byte) error {
	if text[0] != '{' {
		return errNoObject
	}
	var name []byte    // of the claim whose value is next
	var audiences bool // the list that is open is that of aud
	for depth := 0; len(text) > 0; {
		token := text[:tokenLength(text)]
		text = text[len(token):]
		switch token[0] {
		case ' ', '\t', '\r', '\n', ':':
		case ',':
			if depth == 1 {
				name = nil
			}
		case '}', ']':
			depth--
		case '{', '[':
			switch {
			case depth == 1:
				c.set(name, token, 0)
				audiences = c.reads && token[0] == '[' && string(nameOf(name)) == "aud"
			case depth == 2 && audiences:
				c.audErr = jwt.ErrInvalidType
			}
			depth++
		default:
			number, err := numberOf(token)
			switch {
			case err != nil:
				return err
			case depth == 1 && name == nil:
				name = token
			case depth == 1:
				c.set(name, token, number)
			case depth == 2 && audiences && token[0] == '"':
				c.aud = append(c.aud, textOf(token))
			case depth == 2 && audiences:
				c.audErr = jwt.ErrInvalidType
			}
		}
	}
	return nil
}

// tokenLength is the length of the first token of a JSON text: a whole string,
// number or word, else one character.
func tokenLength(text []byte) int {
	switch text[0] {
	case ' ', '\t', '\r', '\n', ':', ',', '{', '}', '[', ']':
		return 1
	case '"':
		end := 1
		for ; text[end] != '"'; end++ {
			if text[end] == '\\' {
				end++
			}
		}
		return end + 1
	}
	for end, b := range text {
		switch b {
		case ' ', '\t', '\r', '\n', ',', '}', ']':
			return end
		}
	}
	return len(text)
}

// set takes the name and value of a claim, the value's first token where it has
// several. number is the value of a number.
func (c *claims) set(name, value []byte, number float64) {
	bare := nameOf(name)
	if c.planClaim != "" && string(bare) == c.planClaim {
		c.plan, _ = stringOf(value) // what is no text is no plan
	}
	if string(bare) == c.tenantClaim {
		c.tenant, c.tenantErr = stringOf(value)
		return
	}
	switch string(bare) {
	case "exp":
		c.exp = dateOf(value, number)
	case "nbf":
		c.nbf = dateOf(value, number)
	case "iat":
		c.iat = dateOf(value, number)
	case "iss":
		if c.reads {
			c.iss, c.issErr = stringOf(value)
		}
	case "aud": // what is neither a text nor a list is none
		if c.aud, c.audErr = nil, nil; c.reads && value[0] == '"' {
			c.aud = jwt.ClaimStrings{textOf(value)}
		}
	}
}

// nameOf returns the text of a name.
func nameOf(token []byte) []byte {
	bare := token[1 : len(token)-1]
	if bytes.IndexByte(bare, '\\') >= 0 {
		return []byte(textOf(token))
	}
	return bare
}

// stringOf returns the text of a value that is to be a string.
func stringOf(value []byte) (string, error) {
	if value[0] != '"' {
		return "", jwt.ErrInvalidType
	}
	return textOf(value), nil
}

// textOf returns the text of a JSON string.
func textOf(token []byte) string {
	bare := token[1 : len(token)-1]
	if bytes.IndexByte(bare, '\\') < 0 && utf8.Valid(bare) {
		return string(bare)
	}
	var text string
	_ = json.Unmarshal(token, &text) // it is a JSON string
	return text
}

func isNumber(token []byte) bool {
	return token[0] == '-' || '0' <= token[0] && token[0] <= '9'
}

// numberOf returns the value of a number, 0 for other tokens. The error is that
// of a number which no float64 can hold.
func numberOf(token []byte) (float64, error) {
	if !isNumber(token) {
		return 0, nil
	}
	return strconv.ParseFloat(string(token), 64)
}

// dateOf makes of seconds since the epoch what the library makes of them.
func dateOf(token []byte, seconds float64) claimedDate {
	switch {
	case !isNumber(token):
		return claimedDate{err: jwt.ErrInvalidType}
	case seconds == 0:
		return claimedDate{}
	}
	whole, fraction := math.Modf(seconds)
	date := jwt.NewNumericDate(time.Unix(int64(whole), int64(fraction*1e9)))
	return claimedDate{date: *date, present: true}
}
