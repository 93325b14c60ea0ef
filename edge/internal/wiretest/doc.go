// Package wiretest sends bytes that nobody should send through a whole edge, to a
// backend that reads as strictly as RFC 9112 allows and accounts for each byte. It
// has only tests.
package wiretest
