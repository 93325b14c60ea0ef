// Package redistest gives tests a real Redis, and a faulty road to it.
//
// [URL] and [Client] reach one server that all tests of a package share.
// [Start] gives a test a server of its own, with its own flags, that it may
// kill, restart and pause. [NewProxy] stands in front of a server and breaks
// what passes through it on demand.
//
// The shared server is, in this order: the one that SENTINEL_REDIS_URL names; a
// container of SENTINEL_REDIS_IMAGE (redis:7-alpine unless set), or, where that
// default cannot be pulled, of an image made from the machine's own redis-server;
// a redis-server from the PATH. Where there is none the tests fail and say what
// to do; they are never skipped. SENTINEL_TEST_REDIS=container or =process
// admits that one kind alone.
//
// The shared server belongs to all tests of the package: a test uses tenants of
// its own and flushes nothing. One that counts commands, changes the
// configuration or stops the server takes its own from Start.
package redistest
