package larderlimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// integerMax is the largest number that a structured header field takes.
const integerMax = 999_999_999_999_999

// Handler returns a handler that passes requests within the limit to next, and answers all others itself.
func (l *Limiter) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A client can cancel its request's context. That must not look like a server that is away, because
		// the handler may then admit the request. WithTimeout still limits the time of the decision.
		decision, err := l.Take(context.WithoutCancel(r.Context()), l.key(r), l.cost(r))
		switch {
		case err == nil:
			l.setHeaders(w.Header(), decision)
			if decision.Allowed {
				next.ServeHTTP(w, r)
			} else {
				l.rejected.ServeHTTP(w, r)
			}
		case !errors.Is(err, ErrUnavailable):
			l.warn("rate limits do not work: %v", err)
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		case l.failClosed:
			l.warn("rate limits fail closed: %v", err)
			w.Header().Set("Retry-After", "1")
			http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
		default:
			l.warn("rate limits fail open: %v", err)
			next.ServeHTTP(w, r)
		}
	})
}

// setHeaders adds the fields of draft-ietf-httpapi-ratelimit-headers-10, and Retry-After if the request
// was refused. The fields are lists, so that several limiters can guard one handler.
func (l *Limiter) setHeaders(header http.Header, d Decision) {
	policy := fmt.Sprintf(`"%s";q=%d`, l.name, atMost(l.limit.budget))
	if l.limit.window > 0 {
		policy += ";w=" + seconds(l.limit.window)
	}
	header.Add("RateLimit-Policy", policy)

	// In RateLimit, t is the time until more units are available. Retry-After must not be earlier
	// than t, so both fields have the same value.
	state := fmt.Sprintf(`"%s";r=%d`, l.name, atMost(d.Remaining))
	until := d.Reset
	if !d.Allowed {
		until = d.Retry
	}
	if until >= 0 {
		state += ";t=" + seconds(until)
	}
	header.Add("RateLimit", state)
	if !d.Allowed && until >= 0 {
		header.Set("Retry-After", seconds(until))
	}
}

// ClientAddress returns the address of the request's peer. For IPv6 it returns the /64 network,
// because one client usually has a whole /64. Behind a proxy, use the header that the proxy sets
// instead.
func ClientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address, err := netip.ParseAddr(host)
	if err != nil || address.Unmap().Is4() {
		return host
	}
	network, err := address.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}

func tooMany(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) string {
	n := d / time.Second
	if d%time.Second > 0 {
		n++
	}
	return strconv.FormatInt(int64(n), 10)
}

func atMost(n uint64) uint64 {
	if n > integerMax {
		return integerMax
	}
	return n
}
