package wire

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"strconv"
)

// Refusal is what is wrong with a request.
type Refusal struct {
	Status int    // 400, 414, 417 or 431
	Detail string // for the client and the log; it holds nothing that was sent
	Path   bool   // it is the path that is wrong, in a form that no router gets to see
}

// fault is a number of faults. 0: there is none.
type fault uint8

const (
	noFault fault = iota
	badRequestLine
	badTarget
	badPath
	longTarget
	badVersion
	bareLF
	badField
	folded
	spaceBeforeColon
	badName
	badValue
	manyFields
	longHead
	noHost
	manyHosts
	badHost
	badLength
	manyLengths
	badCoding
	unknownCoding
	oldCoding
	lengthAndCoding
	badExpect
	badTrailer
	noBody
)

// faults are the refusals that there are. None is 501 or 505, which RFC 9110 has
// for two of them: what clients do wrong must not ring the alarm that 5xx is.
var faults = [...]Refusal{
	badRequestLine:   {Status: http.StatusBadRequest, Detail: "the request line is malformed"},
	badTarget:        {Status: http.StatusBadRequest, Detail: "the request target is malformed"},
	badPath:          {Status: http.StatusBadRequest, Detail: "the path has a byte that must be escaped, or a bad escape", Path: true},
	longTarget:       {Status: http.StatusRequestURITooLong, Detail: "the request target is too long"},
	badVersion:       {Status: http.StatusBadRequest, Detail: "the HTTP version is not supported"},
	bareLF:           {Status: http.StatusBadRequest, Detail: "a line does not end in CR LF"},
	badField:         {Status: http.StatusBadRequest, Detail: "a header field has no colon"},
	folded:           {Status: http.StatusBadRequest, Detail: "a header field is folded"},
	spaceBeforeColon: {Status: http.StatusBadRequest, Detail: "a header field has a space before its colon"},
	badName:          {Status: http.StatusBadRequest, Detail: "the name of a header field is invalid"},
	badValue:         {Status: http.StatusBadRequest, Detail: "the value of a header field has a control character"},
	manyFields:       {Status: http.StatusRequestHeaderFieldsTooLarge, Detail: "there are too many header fields"},
	longHead:         {Status: http.StatusRequestHeaderFieldsTooLarge, Detail: "the header is too large"},
	noHost:           {Status: http.StatusBadRequest, Detail: "Host is missing"},
	manyHosts:        {Status: http.StatusBadRequest, Detail: "there is more than one Host"},
	badHost:          {Status: http.StatusBadRequest, Detail: "Host is invalid"},
	badLength:        {Status: http.StatusBadRequest, Detail: "Content-Length is not a number"},
	manyLengths:      {Status: http.StatusBadRequest, Detail: "there is more than one Content-Length"},
	badCoding:        {Status: http.StatusBadRequest, Detail: "Transfer-Encoding is not chunked"},
	unknownCoding:    {Status: http.StatusBadRequest, Detail: "the transfer coding is not supported"},
	oldCoding:        {Status: http.StatusBadRequest, Detail: "HTTP/1.0 has no Transfer-Encoding"},
	lengthAndCoding:  {Status: http.StatusBadRequest, Detail: "there are both Content-Length and Transfer-Encoding"},
	badExpect:        {Status: http.StatusExpectationFailed, Detail: "the expectation is not supported"},
	badTrailer:       {Status: http.StatusBadRequest, Detail: "Trailer announces a field that cannot be one"},
	noBody:           {Status: http.StatusBadRequest, Detail: "there is a Content-Length, and no body"},
}

// refusalHeader marks the head that stands for a refused one. Its value begins
// with mark, which no client knows.
const refusalHeader = "Sentinel-Wire-Refusal"

// mark is this process's secret. It never leaves it: whoever gets a request that
// has it does not pass it on.
var mark = rand.Text() + "-"

// head returns the request that net/http is given instead of one with the fault.
// Its answer is the last of the connection.
func (f fault) head(ofHead bool) []byte {
	method := http.MethodGet
	if ofHead {
		method = http.MethodHead // its answer has no body
	}
	return []byte(method + " / HTTP/1.1\r\nHost: refused.invalid\r\nConnection: close\r\n" +
		refusalHeader + ": " + mark + strconv.Itoa(int(f)) + "\r\n\r\n")
}

// Refused reports whether the request is refused. Of HTTP/1 it is the connection
// that has refused one, and r is not that but another, which stands for it. Its
// answer is the last of the connection. r's context may have ended already, where
// the client expects nothing more; it is to be answered all the same.
//
// A request of HTTP/2 is held to the same rules here, as far as net/http has let
// it through: it lets a method, a target and a host have spaces in them.
func Refused(r *http.Request) (Refusal, bool) {
	if r.ProtoMajor > 1 {
		f := faultOf(r)
		return faults[f], f != noFault
	}
	values := r.Header[refusalHeader]
	if len(values) != 1 || len(values[0]) < len(mark) {
		return Refusal{}, false
	}
	if subtle.ConstantTimeCompare([]byte(values[0][:len(mark)]), []byte(mark)) != 1 {
		return Refusal{}, false
	}
	n, err := strconv.Atoi(values[0][len(mark):])
	if err != nil || n <= 0 || n >= len(faults) {
		return Refusal{}, false
	}
	return faults[n], true
}
