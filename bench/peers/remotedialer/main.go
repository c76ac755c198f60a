// Command remotedialer is as little around Rancher's library of that name as a user of it needs, and what Rancher has around
// it: users reach an HTTPS reverse proxy, whose connections to the upstream are dialled at the site, through the WebSocket
// that the site's agent holds open. The user's TLS ends at the proxy; that to the upstream goes through the tunnel's.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/gorilla/websocket"
	"github.com/rancher/remotedialer"
)

const (
	// The agent's name at the server.
	site = "site"
	// Where agents dial in; everything else is a user's.
	connect = "/tunnel/connect"
	// What one copy of a body takes along.
	chunk = 64 << 10
	// Idle connections to the upstream, as many as the other proxies of a comparison keep.
	idle = 512
	// How soon an agent that lost its server tries again.
	again = 200 * time.Millisecond
)

// The suites of TLS 1.3 in order of preference. crypto/tls has no setting for them, but keeps this name for programs such as
// this one; every leg of a comparison has the same cipher.
//
//go:linkname suites crypto/tls.defaultCipherSuitesTLS13
var suites []uint16

func main() {
	suites = []uint16{tls.TLS_AES_256_GCM_SHA384}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return errors.New("usage: remotedialer server|agent FLAGS")
	}
	switch side, args := os.Args[1], os.Args[2:]; side {
	case "server":
		return serve(args)
	case "agent":
		return dial(args)
	default:
		return fmt.Errorf("%q is neither server nor agent", side)
	}
}

// serve is the end that users reach.
func serve(args []string) error {
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	listen := flags.String("listen", "", "host:port for users and agents")
	certificate := flags.String("certificate", "", "certificate chain, PEM")
	key := flags.String("key", "", "its key, PEM")
	upstream := flags.String("upstream", "", "host:port of the upstream, as the site reaches it")
	name := flags.String("upstream-name", "", "the name in the upstream's certificate")
	ca := flags.String("upstream-ca", "", "the authority of the upstream, PEM")
	_ = flags.Parse(args) // ends the process itself
	trust, err := trusted(*ca)
	if err != nil {
		return err
	}
	trust.ServerName = *name
	agents := remotedialer.New(func(*http.Request) (string, bool, error) { return site, true, nil }, remotedialer.DefaultErrorWriter)
	routes := http.NewServeMux()
	routes.Handle(connect, agents)
	routes.Handle("/", proxy(*upstream, &http.Transport{
		DialContext:         agents.Dialer(site),
		TLSClientConfig:     trust,
		MaxIdleConnsPerHost: idle,
		DisableCompression:  true,
		ReadBufferSize:      chunk,
		WriteBufferSize:     chunk,
	}))
	server := &http.Server{Addr: *listen, Handler: routes, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 20000}}
	return server.ListenAndServeTLS(*certificate, *key)
}

func proxy(upstream string, transport *http.Transport) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:       func(request *httputil.ProxyRequest) { request.SetURL(&url.URL{Scheme: "https", Host: upstream}) },
		Transport:     transport,
		FlushInterval: -1,
		BufferPool:    &buffers{sync.Pool{New: func() any { return make([]byte, chunk) }}},
		// A line for each request, as the other proxies write one.
		ModifyResponse: func(answer *http.Response) error {
			log.Printf("%s %s %d", answer.Request.Method, answer.Request.URL.Path, answer.StatusCode)
			return nil
		},
	}
}

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte       { return b.pool.Get().([]byte) }
func (b *buffers) Put(buffer []byte) { b.pool.Put(buffer) } //nolint:staticcheck // a header of three words

// dial is the end at the site.
func dial(args []string) error {
	flags := flag.NewFlagSet("agent", flag.ExitOnError)
	server := flags.String("connect", "", "host:port of the server")
	ca := flags.String("ca", "", "the authority of the server, PEM")
	_ = flags.Parse(args)
	trust, err := trusted(*ca)
	if err != nil {
		return err
	}
	dialer := &websocket.Dialer{TLSClientConfig: trust, HandshakeTimeout: remotedialer.HandshakeTimeOut}
	allow := func(string, string) bool { return true }
	for {
		err := remotedialer.ConnectToProxy(context.Background(), "wss://"+*server+connect, nil, allow, dialer, nil)
		log.Printf("the tunnel has ended: %v", err)
		time.Sleep(again)
	}
}

func trusted(file string) (*tls.Config, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate", file)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, nil
}
