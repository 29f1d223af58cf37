// Command example serves a page with two limits. Start Larder, then: go run ./example
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	larderlimit "github.com/larder/larder/adapters/go-http"
)

func main() {
	// 100 requests a minute for each client, at most 20 of them at once.
	api, err := larderlimit.New("127.0.0.1:11211", larderlimit.GCRA(100, time.Minute, 20),
		larderlimit.WithName("api"), larderlimit.WithPrefix("api:"))
	if err != nil {
		log.Fatal(err)
	}
	// At most 5 log-ins a minute for each user. All log-ins are refused while Larder cannot be
	// reached.
	login, err := larderlimit.New("127.0.0.1:11211", larderlimit.Sliding(5, time.Minute),
		larderlimit.WithName("login"), larderlimit.WithPrefix("login:"), larderlimit.WithFailClosed(),
		larderlimit.WithKey(func(r *http.Request) string { return r.FormValue("user") }))
	if err != nil {
		log.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.Handle("/login", login.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "welcome")
	})))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe("127.0.0.1:3000", api.Handler(mux)))
}
