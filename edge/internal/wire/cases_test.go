package wire

import "strings"

// limits of the tests: small, so that what is beyond them is short.
var limits = Limits{HeaderBytes: 2048, HeaderFields: 20, URLBytes: 256, Connections: 100}

// wireCase is what a client sends, and the answers that it gets: of the test's
// handler, "GET 0" for a request with that method and length of body, or a status,
// and what is wrong.
type wireCase struct {
	name, raw string
	want      []string
}

const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

// good has the request between two that are well, so that where it ends matters.
func good(name, raw, want string) wireCase {
	return wireCase{name, get + raw + get, []string{"GET 0", want, "GET 0"}}
}

// bad has it before one that must not be seen.
func bad(name, raw, want string) wireCase {
	return wireCase{name, get + raw + get, []string{"GET 0", want}}
}

func lines(all ...string) string { return strings.Join(all, "\r\n") + "\r\n\r\n" }

func withTarget(target string) string { return lines("GET "+target+" HTTP/1.1", "Host: a") }

func withHost(host string) string { return lines("GET / HTTP/1.1", "Host: "+host) }

func withField(field string) string { return lines("GET / HTTP/1.1", "Host: a", field) }

func post(body string, fields ...string) string {
	return lines(append([]string{"POST / HTTP/1.1", "Host: a"}, fields...)...) + body
}

func chunked(body string) string { return post(body, "Transfer-Encoding: chunked") }

var cases = []wireCase{
	good("plain", get, "GET 0"),
	good("1.0 that is kept", lines("GET / HTTP/1.0", "Connection: keep-alive"), "GET 0"),
	{"1.0", lines("GET / HTTP/1.0") + get, []string{"GET 0"}},
	{"closed", lines("GET / HTTP/1.1", "Host: a", "Connection: close") + "rubbish", []string{"GET 0"}},
	good("any token is a method", lines("A!#$%&'*+-.^_`|~9 / HTTP/1.1", "Host: a"), "A!#$%&'*+-.^_`|~9 0"),
	good("an empty line before", "\r\n"+get, "GET 0"),
	good("an empty line after a post", post("x", "Content-Length: 1")+"\r\n", "POST 1"),
	bad("two empty lines before", "\r\n\r\n"+get, "400 the request line is malformed"),

	good("a length", post("hello", "Content-Length: 5"), "POST 5"),
	good("a length with zeros before", post("hello", "Content-Length: 0005"), "POST 5"),
	good("a length with spaces around", post("hello", "Content-Length:  \t5\t "), "POST 5"),
	good("a length of none", post("", "Content-Length: 0"), "POST 0"),
	good("a length of a get", lines("GET / HTTP/1.1", "Host: a", "Content-Length: 2")+"hi", "GET 2"),
	good("the name in any case", post("hello", "cOnTENT-leNGTH: 5"), "POST 5"),
	bad("a length with a sign", post("hello", "Content-Length: +5"), "400 Content-Length is not a number"),
	bad("a negative length", post("hello", "Content-Length: -5"), "400 Content-Length is not a number"),
	bad("a length in two parts", post("hello", "Content-Length: 5 5"), "400 Content-Length is not a number"),
	bad("a list of lengths", post("hello", "Content-Length: 5, 5"), "400 Content-Length is not a number"),
	bad("a length in hex", post("hello", "Content-Length: 0x5"), "400 Content-Length is not a number"),
	bad("an empty length", post("hello", "Content-Length: "), "400 Content-Length is not a number"),
	bad("a length of 2^64 + 5", post("hello", "Content-Length: 18446744073709551621"), "400 Content-Length is not a number"),
	bad("a length with a form feed", post("hello", "Content-Length: \f5"), "400 the value of a header field has a control character"),
	bad("two lengths", post("hello", "Content-Length: 5", "Content-Length: 6"), "400 there is more than one Content-Length"),
	bad("two equal lengths", post("hello", "Content-Length: 5", "Content-Length: 5"), "400 there is more than one Content-Length"),

	good("chunks", chunked("5\r\nhello\r\n0\r\n\r\n"), "POST 5"),
	good("chunked in any case", post("5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: CHUNKED"), "POST 5"),
	good("chunks of many sizes", chunked("1\r\nx\r\n0A\r\n0123456789\r\n000f\r\n0123456789abcde\r\n000\r\n\r\n"), "POST 26"),
	good("more chunks than a size has digits", chunked(strings.Repeat("2\r\nab\r\n", 40)+"0\r\n\r\n"), "POST 80"),
	good("chunk extensions", chunked("5;a;b=c;d=\"e f\"\r\nhello\r\n0;last\r\n\r\n"), "POST 5"),
	good("trailers", chunked("5\r\nhello\r\n0\r\nA: b\r\nC:\td e\r\n\r\n"), "POST 5"),
	good("chunks that hold a request", chunked("1b\r\n"+get+"\r\n0\r\n\r\n"), "POST 27"),
	bad("a length and chunks", post("0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked"), "400 there are both Content-Length and Transfer-Encoding"),
	bad("chunks and a length", post("0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5"), "400 there are both Content-Length and Transfer-Encoding"),
	bad("another coding", post("", "Transfer-Encoding: gzip"), "400 Transfer-Encoding is not chunked"),
	bad("another coding in chunks", post("0\r\n\r\n", "Transfer-Encoding: gzip, chunked"), "400 the transfer coding is not supported"),
	bad("another coding behind chunks", post("0\r\n\r\n", "Transfer-Encoding: chunked, gzip"), "400 Transfer-Encoding is not chunked"),
	bad("chunks in chunks", post("0\r\n\r\n", "Transfer-Encoding: chunked, chunked"), "400 Transfer-Encoding is not chunked"),
	bad("chunked twice", post("0\r\n\r\n", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), "400 Transfer-Encoding is not chunked"),
	bad("an empty coding", post("0\r\n\r\n", "Transfer-Encoding:"), "400 Transfer-Encoding is not chunked"),
	bad("an almost chunked coding", post("0\r\n\r\n", "Transfer-Encoding: xchunked"), "400 Transfer-Encoding is not chunked"),
	bad("a coding with a parameter", post("0\r\n\r\n", "Transfer-Encoding: chunked;q=1"), "400 Transfer-Encoding is not chunked"),
	bad("a coding with a vertical tab", post("0\r\n\r\n", "Transfer-Encoding: \vchunked"), "400 the value of a header field has a control character"),
	bad("a coding of 1.0", lines("POST / HTTP/1.0", "Connection: keep-alive", "Transfer-Encoding: chunked")+"0\r\n\r\n", "400 HTTP/1.0 has no Transfer-Encoding"),
	bad("a trailer that frames", post("0\r\n\r\n", "Transfer-Encoding: chunked", "Trailer: A, Content-Length"), "400 Trailer announces a field that cannot be one"),

	bad("a chunk with a negative size", chunked("-5\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a chunk with no size", chunked("\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a second chunk with no size", chunked("5\r\nhello\r\n\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a chunk with an extension alone", chunked(";a\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a chunk of 0x", chunked("0x5\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a space before a size", chunked(" 5\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a space behind a size", chunked("5 \r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a space before an extension", chunked("5 ;a\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a size that overflows", chunked("10000000000000005\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a size of 2^63", chunked("8000000000000000\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a size that ends in LF", chunked("5\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a size that ends in CR", chunked("5\rhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("an extension that ends in LF", chunked("5;a\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("an extension with a CR", chunked("5;a\rb\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("an extension that is long", chunked("5;"+strings.Repeat("a", 2000)+"\r\nhello\r\n0\r\n\r\n"), "POST bad body"),
	bad("a chunk that is longer", chunked("5\r\nhellox\r\n0\r\n\r\n"), "POST bad body"),
	bad("a chunk that ends in LF", chunked("5\r\nhello\n0\r\n\r\n"), "POST bad body"),
	bad("a chunk that ends in CR", chunked("5\r\nhello\r0\r\n\r\n"), "POST bad body"),
	bad("extensions and nothing else", chunked(strings.Repeat("1;"+strings.Repeat("a", 1000)+"\r\nx\r\n", 20)+"0\r\n\r\n"), "POST bad body"),
	bad("a trailer with no colon", chunked("0\r\nA\r\n\r\n"), "POST bad body"),
	bad("a trailer with no name", chunked("0\r\n: a\r\n\r\n"), "POST bad body"),
	bad("a folded trailer", chunked("0\r\nA: b\r\n c\r\n\r\n"), "POST bad body"),
	bad("a trailer that ends in LF", chunked("0\r\nA: b\n\r\n"), "POST bad body"),
	bad("a trailer with a CR", chunked("0\r\nA: b\rc\r\n\r\n"), "POST bad body"),
	bad("a body that ends in CR", chunked("0\r\n\r"), "POST bad body"),
	bad("trailers that are long", chunked("0\r\nA: "+strings.Repeat("b", 5000)+"\r\n\r\n"), "POST bad body"),
	bad("trailers that are many", chunked("0\r\n"+strings.Repeat("A: b\r\n", 21)+"\r\n"), "POST bad body"),

	bad("no version", "GET /\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("two spaces later", "GET /  HTTP/1.1\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("a tab for a space", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("a space before", " GET / HTTP/1.1\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("a space behind", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("a bad method", "G(T / HTTP/1.1\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("a version in lower case", "GET / http/1.1\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("a long version", "GET / HTTP/1.10\r\nHost: a\r\n\r\n", "400 the request line is malformed"),
	bad("1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", "400 the HTTP version is not supported"),
	bad("0.9", "GET / HTTP/0.9\r\nHost: a\r\n\r\n", "400 the HTTP version is not supported"),
	{"an empty line before HTTP/2", "\r\n" + preface, []string{"400 the HTTP version is not supported"}},
	bad("HTTP/2 as a second thought", preface, "400 the HTTP version is not supported"),

	good("a query as it is", withTarget("/x?p=1;q=2&z=%zz&a=|\\[]{}"), "GET 0"),
	good("a query with a question mark", withTarget("/x?a?b"), "GET 0"),
	good("two slashes", withTarget("//a/b"), "GET 0"),
	good("an escaped path", withTarget("/a%2Fb%00"), "GET 0"), // the router's to refuse
	good("absolute", withTarget("http://a/b?c"), "GET 0"),
	good("absolute with no path", withTarget("HTTPS://a"), "GET 0"),
	good("absolute with a query alone", withTarget("http://a:80?c"), "GET 0"),
	good("absolute with another host", withTarget("http://other/"), "GET 0"),
	good("asterisk", lines("OPTIONS * HTTP/1.1", "Host: a"), "OPTIONS 0"),
	bad("asterisk of a get", withTarget("*"), "400 the request target is malformed"),
	bad("relative", withTarget("a/b"), "400 the request target is malformed"),
	bad("another scheme", withTarget("ftp://a/"), "400 the request target is malformed"),
	bad("a scheme alone", withTarget("http://"), "400 the request target is malformed"),
	bad("no host in absolute", withTarget("http:///a"), "400 the request target is malformed"),
	bad("user information", withTarget("http://u@a/"), "400 the request target is malformed"),
	bad("a fragment", withTarget("/a#b"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("NUL", withTarget("/a\x00"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("a control byte", withTarget("/a\x1f"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("DEL", withTarget("/a\x7f"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("UTF-8", withTarget("/ä"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("a CR in the target", withTarget("/a\rb"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("a bad escape", withTarget("/%zz"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("half an escape", withTarget("/a%2"), "400 the path has a byte that must be escaped, or a bad escape"),
	bad("a control byte in the query", withTarget("/a?\x1f"), "400 the request target is malformed"),
	good("a long target", withTarget("/"+strings.Repeat("a", 255)), "GET 0"),
	bad("a longer target", withTarget("/"+strings.Repeat("a", 256)), "414 the request target is too long"),
	bad("a much longer target", withTarget("/"+strings.Repeat("a", 4000)), "414 the request target is too long"),
	good("connect", lines("CONNECT a:443 HTTP/1.1", "Host: a"), "CONNECT 0"),
	good("connect to an address", lines("CONNECT [::1]:443 HTTP/1.1", "Host: a"), "CONNECT 0"),
	good("upgrade", lines("GET / HTTP/1.1", "Host: a", "Upgrade: h2c"), "GET 0"),
	bad("connect to a path", lines("CONNECT / HTTP/1.1", "Host: a"), "400 the request target is malformed"),
	bad("connect with no port", lines("CONNECT a HTTP/1.1", "Host: a"), "400 the request target is malformed"),

	good("a host with a port", withHost("a.example:8080"), "GET 0"),
	good("a host with an empty port", withHost("a:"), "GET 0"),
	good("an address", withHost("127.0.0.1"), "GET 0"),
	good("an IPv6 address", withHost("[::1]:8080"), "GET 0"),
	good("spaces around a host", withHost(" \ta\t "), "GET 0"),
	good("no host in 1.0", lines("GET / HTTP/1.0", "Connection: keep-alive"), "GET 0"),
	bad("no host", lines("GET / HTTP/1.1"), "400 Host is missing"),
	bad("no host in absolute form", lines("GET http://a/ HTTP/1.1"), "400 Host is missing"),
	bad("two hosts", lines("GET / HTTP/1.1", "Host: a", "Host: b"), "400 there is more than one Host"),
	bad("two equal hosts", lines("GET / HTTP/1.1", "Host: a", "hOST: a"), "400 there is more than one Host"),
	bad("an empty host", withHost(""), "400 Host is invalid"),
	bad("a list of hosts", withHost("a, b"), "400 Host is invalid"),
	bad("a host with a path", withHost("a/b"), "400 Host is invalid"),
	bad("a host with user information", withHost("u@a"), "400 Host is invalid"),
	bad("a host with a space", withHost("a b"), "400 Host is invalid"),
	bad("a host beyond ASCII", withHost("ä"), "400 Host is invalid"),
	bad("a port that is none", withHost("a:b"), "400 Host is invalid"),
	bad("a port beyond all", withHost("a:65536"), "400 Host is invalid"),
	bad("a port alone", withHost(":80"), "400 Host is invalid"),
	bad("half an IPv6 address", withHost("[::1"), "400 Host is invalid"),
	bad("an IPv6 address without brackets", withHost("::1"), "400 Host is invalid"),
	bad("an IPv4 address in brackets", withHost("[127.0.0.1]"), "400 Host is invalid"),
	bad("a zone", withHost("[fe80::1%eth0]"), "400 Host is invalid"),

	good("an empty value", withField("A:"), "GET 0"),
	good("a value with all that may be in it", withField("A: \t!\"#~ä\xff\t"), "GET 0"),
	good("a name with all that may be in it", withField("!#$%&'*+-.^_`|~09azAZ: a"), "GET 0"),
	good("the most fields", withField(strings.Repeat("A: b\r\n", 18)+"A: b"), "GET 0"),
	bad("too many fields", withField(strings.Repeat("A: b\r\n", 19)+"A: b"), "431 there are too many header fields"),
	good("the longest head", withField("A: "+strings.Repeat("b", 2048-len(withField("A: ")))), "GET 0"),
	bad("a longer head", withField("A: "+strings.Repeat("b", 2049-len(withField("A: ")))), "431 the header is too large"),
	bad("a head that does not end", withField("A: "+strings.Repeat("b", 50_000)), "431 the header is too large"),
	bad("a folded field", withField("A: b\r\n c"), "400 a header field is folded"),
	bad("a fold at once", lines("GET / HTTP/1.1", " A: b", "Host: a"), "400 a header field is folded"),
	bad("a fold of nothing", withField("A: b\r\n\t"), "400 a header field is folded"),
	bad("a space before a colon", withField("A : b"), "400 a header field has a space before its colon"),
	bad("a tab before a colon", withField("Content-Length\t: 5"), "400 a header field has a space before its colon"),
	bad("no colon", withField("A b"), "400 a header field has no colon"),
	bad("no name", withField(": b"), "400 the name of a header field is invalid"),
	bad("a name beyond ASCII", withField("Ä: b"), "400 the name of a header field is invalid"),
	bad("a name in parentheses", withField("(A): b"), "400 the name of a header field is invalid"),
	bad("a NUL in a name", withField("A\x00: b"), "400 the name of a header field is invalid"),
	bad("a NUL in a value", withField("A: b\x00c"), "400 the value of a header field has a control character"),
	bad("a DEL in a value", withField("A: b\x7fc"), "400 the value of a header field has a control character"),
	bad("a CR in a value", withField("A: b\rc"), "400 the value of a header field has a control character"),
	bad("a CR before the end", withField("A: b\r"), "400 the value of a header field has a control character"),
	bad("a field that ends in LF", "GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n", "400 a line does not end in CR LF"),
	bad("a request line that ends in LF", "GET / HTTP/1.1\nHost: a\r\n\r\n", "400 a line does not end in CR LF"),
	bad("a head that ends in LF", "GET / HTTP/1.1\r\nHost: a\r\n\n", "400 a line does not end in CR LF"),
	bad("LF alone", "\n", "400 a line does not end in CR LF"),
	good("an expectation with no body", withField("Expect: 100-Continue"), "GET 0"),
	bad("another expectation", withField("Expect: a miracle"), "417 the expectation is not supported"),
	bad("a head request", "HEAD / HTTP/1.1\r\nHost: a b\r\n\r\n", "400"),
}
