package sentinel

import (
	"fmt"
	"io"
)

// Secret is a text that is never printed: no verb of fmt, no encoding and no
// log shows it, whether it stands alone or deep in another value. The zero
// Secret is unset, and so is NewSecret(""). It is immutable and safe for
// concurrent use.
//
// It guards against accidents, not against code that goes looking: a debugger
// or package unsafe still finds the text.
type Secret struct {
	// A pointer, for fmt calls no method on values that it reaches through an
	// unexported field: there it prints an address and not the text.
	p *string
}

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{p: &text}
}

// Secrets are secrets that are in force together: the first signs, all verify.
// So one can be replaced without a moment in which instances disagree. nil is
// unset. They print as [Secret] does.
type Secrets []Secret

// NewSecrets returns texts as Secrets, the one that signs first.
func NewSecrets(texts ...string) Secrets {
	secrets := make(Secrets, len(texts))
	for i, text := range texts {
		secrets[i] = NewSecret(text)
	}
	return secrets
}

// reveal returns the texts of all that are set.
func (s Secrets) reveal() []string {
	var texts []string
	for _, secret := range s {
		if !secret.IsZero() {
			texts = append(texts, secret.reveal())
		}
	}
	return texts
}

// IsZero reports whether the secret is unset.
func (s Secret) IsZero() bool { return s.p == nil }

// reveal returns the text, "" if unset. Whoever calls it answers for what
// becomes of it.
func (s Secret) reveal() string {
	if s.p == nil {
		return ""
	}
	return *s.p
}

// String says whether the secret is set, and no more.
func (s Secret) String() string {
	if s.IsZero() {
		return "[unset]"
	}
	return "[redacted]"
}

// Format prints what String says, whatever the verb and its flags.
func (s Secret) Format(f fmt.State, _ rune) {
	// A fmt.State that fails to write has nobody to tell.
	_, _ = io.WriteString(f, s.String())
}

// MarshalText makes encodings and log/slog write what String says. There is no
// way back: a Secret is read from a file by [LoadConfig] alone.
func (s Secret) MarshalText() ([]byte, error) {
	return []byte(s.String()), nil
}
