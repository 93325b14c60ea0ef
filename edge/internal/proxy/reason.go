package proxy

// Reason is why a request ended as it did. The list is closed.
type Reason string

// The reasons.
const (
	OK                  Reason = "ok"
	NoRoute             Reason = "no_route"
	MethodNotAllowed    Reason = "method_not_allowed"
	BadPath             Reason = "bad_path"
	BadRequest          Reason = "bad_request"
	BadBody             Reason = "bad_body"
	BodyTooLarge        Reason = "body_too_large"
	HeaderTooLarge      Reason = "header_too_large"
	RateLimited         Reason = "rate_limited"
	LimiterUnavailable  Reason = "limiter_unavailable"
	Unauthenticated     Reason = "unauthenticated"
	NoBackend           Reason = "no_backend"
	BreakerOpen         Reason = "breaker_open"
	Overloaded          Reason = "overloaded"
	UpstreamUnreachable Reason = "upstream_unreachable"
	UpstreamReset       Reason = "upstream_reset"
	UpstreamTimeout     Reason = "upstream_timeout"
	UpstreamTruncated   Reason = "upstream_truncated"
	BadUpgrade          Reason = "bad_upgrade"
	ClientClosed        Reason = "client_closed"
	Draining            Reason = "draining"
	NotConfigured       Reason = "not_configured"
	Internal            Reason = "internal"
)
