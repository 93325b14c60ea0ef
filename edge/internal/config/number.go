package config

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

var (
	errWhole   = errors.New("must be a whole number in decimal digits")
	errDecimal = errors.New("must be a number as 100 or 0.5, with up to 6 decimals")
)

// whole reads a whole number; one beyond int64 is the nearest int64. YAML's other
// notations are refused: 010 is 8 to one reader and 10 to another.
func whole(text string) (int64, error) {
	digits := strings.TrimPrefix(text, "-")
	if !onlyDigits(digits) || len(digits) > 1 && digits[0] == '0' {
		return 0, errWhole
	}
	n, _ := strconv.ParseInt(text, 10, 64) // digits: what is wrong can only be the range
	return n, nil
}

// microTokens reads tokens as a decimal, exactly, in microtokens. No float takes part.
func microTokens(text string) (int64, error) {
	integer, fraction, point := strings.Cut(text, ".")
	if !onlyDigits(integer) || point && !onlyDigits(fraction) || len(fraction) > 6 {
		return 0, errDecimal
	}
	n, err := strconv.ParseInt(integer+fraction+strings.Repeat("0", 6-len(fraction)), 10, 64)
	if err != nil {
		return 0, errDecimal
	}
	return n, nil
}

func onlyDigits(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return c < '0' || c > '9' })
}

// Decimal is microtokens as tokens, exactly: 500000 is "0.5".
func Decimal(micro int64) string {
	text := strconv.FormatInt(micro, 10)
	if len(text) < 7 {
		text = strings.Repeat("0", 7-len(text)) + text
	}
	integer, fraction := text[:len(text)-6], strings.TrimRight(text[len(text)-6:], "0")
	if fraction == "" {
		return integer
	}
	return integer + "." + fraction
}

// duration is the short form of a duration: 5m, not 5m0s.
func duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
