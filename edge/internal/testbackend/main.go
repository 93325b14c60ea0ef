// Command testbackend is a backend for tests. What it does is chosen by the
// path, and may be changed for all paths at once; what it has received it tells.
//
//	/ok                    200, the backend's name
//	/status/CODE           that status
//	/slow?d=100ms          200 after a time
//	/slowbody?n=10&d=50ms  n chunks, one each d
//	/hang                  never answers
//	/rst0, /rstmid         resets the connection before the headers, in mid-body
//	/trunc                 promises 1000 bytes and ends after 10
//	/503x2?key=K           503 twice for each key, then 200
//	/echo                  the body as it comes, its trailers as trailers
//	/bytes?n=1000          so many bytes, with a Content-Length
//	/sse?n=3&d=50ms        n events
//	/ws                    a WebSocket that echoes
//	/halves                a tunnel that says how much it got when the client ends its half;
//	/halves?first          one that ends its own half first
//	/trailers              a body with a trailer
//	/103                   Early Hints, then 200
//	/bigheader?n=5000      a header of so many bytes
//	/early413              413 before the body is read
//	/health                200; 503 while the fault is 503
//
// Every other path is /ok. The path /_fault?mode=none|503|hang|slow&d=1s changes
// what all of them do, /_journal lists what was received as JSON, and
// /_journal?clear forgets it. Neither is in the journal.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "the `address` to listen on")
	name := flag.String("name", "", "what /ok answers; the address if empty")
	flag.Parse()
	if err := serve(*listen, *name); err != nil {
		log.Fatal("testbackend: ", err)
	}
}

func serve(address, name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	if name == "" {
		name = listener.Addr().String()
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: newBackend(name), Protocols: protocols} // #nosec G112 -- it hangs on purpose
	fmt.Println(listener.Addr())                                            // whoever started it waits for this line
	go func() {
		<-ctx.Done()
		_ = server.Close() // what is open is of no use any more
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
