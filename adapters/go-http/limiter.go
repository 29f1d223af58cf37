// Package larderlimit limits the rate of HTTP requests with limits that live in Larder.
//
// All processes that use the same server, prefix and key share a limit. A decision costs one round trip.
package larderlimit

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// keyChars is the largest length of a key in the form in which it is sent.
const keyChars = 250

// lineBytes is the size of a connection's read buffer. No reply to the limiter's commands is
// longer.
const lineBytes = 1024

var (
	// ErrUnavailable says that the server did not decide, or not in time.
	ErrUnavailable = errors.New("Larder is unavailable")
	// ErrNoLimits says that the server has no rate limits.
	ErrNoLimits = errors.New("this server has no rate limits; it is not Larder, or too old")
)

// Limit is an algorithm with its numbers.
type Limit struct {
	mode          string
	budget, burst uint64
	window        time.Duration
}

// Fixed admits exactly budget units in each window. A window begins with its first unit. A window of
// length 0 never ends.
func Fixed(budget uint64, window time.Duration) Limit {
	return Limit{mode: "MI", budget: budget, window: window}
}

// Sliding admits less than twice budget units in any interval as long as window.
func Sliding(budget uint64, window time.Duration) Limit {
	return Limit{mode: "MW", budget: budget, window: window}
}

// GCRA, a token bucket, admits at most burst + budget*L/window units in any interval of length L.
func GCRA(budget uint64, window time.Duration, burst uint64) Limit {
	return Limit{mode: "MG", budget: budget, window: window, burst: burst}
}

func (l Limit) flags() (string, error) {
	ms := l.window.Milliseconds()
	switch {
	case l.mode == "":
		return "", errors.New("a limit is made with Fixed, Sliding or GCRA")
	case ms < 0 || l.window%time.Millisecond != 0:
		return "", fmt.Errorf("the window %v is no whole number of milliseconds", l.window)
	case ms == 0 && l.mode != "MI":
		return "", errors.New("only a fixed window can be endless")
	case l.mode == "MG":
		return fmt.Sprintf("MG B%d N%dms G%d", l.budget, ms, l.burst), nil
	}
	return fmt.Sprintf("%s B%d N%dms", l.mode, l.budget, ms), nil
}

// Decision is the server's answer.
type Decision struct {
	Allowed   bool
	Remaining uint64
	// Retry is the time until the same request can pass: 0 if it was allowed, negative if never.
	Retry time.Duration
	// Reset is the time until no units are used, rounded up to whole seconds. It is negative if they
	// stay used for ever.
	Reset time.Duration
}

// Limiter asks one server about one limit. Its methods may be called from many goroutines.
type Limiter struct {
	address, flags string
	limit          Limit
	name, prefix   string
	key            func(*http.Request) string
	cost           func(*http.Request) uint64
	rejected       http.Handler
	failClosed     bool
	timeout        time.Duration
	backoff        time.Duration
	logf           func(format string, arguments ...any)

	slots chan struct{} // Holds an element per connection in use.
	idle  chan *conn

	mu      sync.Mutex
	retryAt time.Time
	warnAt  time.Time
}

// Option changes a default of a Limiter.
type Option func(*Limiter)

// WithName names the limit in the RateLimit headers. Default: "default".
func WithName(name string) Option { return func(l *Limiter) { l.name = name } }

// WithPrefix sets the text that comes before every key. Default: "http:".
func WithPrefix(prefix string) Option { return func(l *Limiter) { l.prefix = prefix } }

// WithKey sets the function that returns the key against which a request counts. Default: ClientAddress.
func WithKey(key func(*http.Request) string) Option { return func(l *Limiter) { l.key = key } }

// WithCost sets the function that returns how many units a request takes. Default: 1 for every request.
func WithCost(cost func(*http.Request) uint64) Option { return func(l *Limiter) { l.cost = cost } }

// WithRejected sets the handler that answers requests over the limit. The headers are already set then.
// Default: status 429 and a line of text.
func WithRejected(handler http.Handler) Option { return func(l *Limiter) { l.rejected = handler } }

// WithFailClosed makes the handler answer 503 while the server is away. By default it admits requests then.
func WithFailClosed() Option { return func(l *Limiter) { l.failClosed = true } }

// WithTimeout limits the time of a decision, connecting included. Default: 100 ms.
func WithTimeout(timeout time.Duration) Option { return func(l *Limiter) { l.timeout = timeout } }

// WithBackoff sets the time after a failure during which the server is not asked. Default: 500 ms.
func WithBackoff(backoff time.Duration) Option { return func(l *Limiter) { l.backoff = backoff } }

// WithConnections sets the largest number of connections. Default: 16.
func WithConnections(n int) Option { return func(l *Limiter) { l.slots = make(chan struct{}, n) } }

// WithLogf sets the function that writes warnings. Default: log.Printf.
func WithLogf(logf func(format string, arguments ...any)) Option {
	return func(l *Limiter) { l.logf = logf }
}

// New returns a limiter that asks the server at address: host:port, or the path of a Unix socket.
// It does not connect yet.
func New(address string, limit Limit, options ...Option) (*Limiter, error) {
	l := &Limiter{
		address: address, limit: limit, name: "default", prefix: "http:", key: ClientAddress,
		cost:     func(*http.Request) uint64 { return 1 },
		rejected: http.HandlerFunc(tooMany),
		timeout:  100 * time.Millisecond, backoff: 500 * time.Millisecond, logf: log.Printf,
		slots: make(chan struct{}, 16),
	}
	for _, option := range options {
		option(l)
	}
	l.idle = make(chan *conn, cap(l.slots))
	var err error
	if l.flags, err = limit.flags(); err != nil {
		return nil, err
	}
	if cap(l.slots) == 0 {
		return nil, errors.New("a limiter needs a connection")
	}
	if strings.ContainsAny(l.name, `"\`) || !printable(l.name) {
		return nil, fmt.Errorf("the name %q does not fit into a header", l.name)
	}
	return l, nil
}

// Take takes cost units of key's limit, all or none. With cost 0 it only reads the limit's state.
func (l *Limiter) Take(ctx context.Context, key string, cost uint64) (Decision, error) {
	reply, err := l.ask(ctx, fmt.Sprintf("ma %s %s D%d r t w", encode(l.prefix+key), l.flags, cost), false)
	if err != nil {
		return Decision{}, err
	}
	d := Decision{Allowed: reply[0] == "HD"}
	for _, flag := range reply[1:] {
		var err error
		switch flag[0] {
		case 'r': // The only number that may exceed an int64.
			d.Remaining, err = strconv.ParseUint(flag[1:], 10, 64)
		case 't':
			d.Reset, err = duration(flag[1:], time.Second)
		case 'w':
			d.Retry, err = duration(flag[1:], time.Millisecond)
		}
		if err != nil {
			return Decision{}, fmt.Errorf("%w: it answered %q", ErrUnavailable, strings.Join(reply, " "))
		}
	}
	return d, nil
}

// GiveBack returns units that Take has taken. The limiter sends this request at most once, over a new
// connection. After an error, the server may or may not have got the units back. GiveBack after the end of a
// fixed window frees units of the next window.
func (l *Limiter) GiveBack(ctx context.Context, key string, units uint64) error {
	_, err := l.ask(ctx, fmt.Sprintf("ma %s MD D%d", encode(l.prefix+key), units), true)
	return err
}

// Reset clears the use of key's limit, so that all units are available again.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	_, err := l.ask(ctx, "md "+encode(l.prefix+key), false)
	return err
}

// Close closes the connections that are not in use. The limiter stays usable.
func (l *Limiter) Close() {
	for {
		select {
		case c := <-l.idle:
			c.Close()
		default:
			return
		}
	}
}

// conn is a connection. At most one goroutine uses it at a time.
type conn struct {
	net.Conn
	reader *bufio.Reader
}

// ask sends a command and returns the words of the reply. If once is true, it never sends the command twice.
func (l *Limiter) ask(caller context.Context, command string, once bool) ([]string, error) {
	ctx, cancel := context.WithTimeout(caller, l.timeout)
	defer cancel()
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: all connections are busy", ErrUnavailable)
	}
	l.mu.Lock()
	away := time.Now().Before(l.retryAt)
	l.mu.Unlock()
	if away {
		return nil, fmt.Errorf("%w: it failed a moment ago", ErrUnavailable)
	}
	line, err := l.exchange(ctx, command, once)
	if err != nil {
		if caller.Err() == nil { // The server failed. The caller's own context has not ended.
			l.mu.Lock()
			l.retryAt = time.Now().Add(l.backoff)
			l.mu.Unlock()
		}
		return nil, fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	reply := strings.Fields(line)
	switch {
	case len(reply) > 0 && (reply[0] == "HD" || reply[0] == "NS" || reply[0] == "NF"):
		return reply, nil
	case line == "ERROR" || line == "CLIENT_ERROR invalid or duplicate flag":
		return nil, ErrNoLimits
	case strings.HasPrefix(line, "CLIENT_ERROR "):
		return nil, fmt.Errorf("Larder refused a command: %s", line)
	}
	return nil, fmt.Errorf("%w: it answered %q", ErrUnavailable, line)
}

// exchange sends a command over an idle connection, or over a new one if none is idle. If the server has
// closed the idle connection, exchange sends the command again over a new one. The server may then take
// the units twice, which never admits too much. If once is true, exchange closes the idle connection instead,
// because the server may have closed it already, and sends the command over a new one.
func (l *Limiter) exchange(ctx context.Context, command string, once bool) (string, error) {
	select {
	case c := <-l.idle:
		if once {
			c.Close()
			break
		}
		line, err := l.exchangeOn(ctx, c, command)
		var timeout net.Error
		if err == nil || (errors.As(err, &timeout) && timeout.Timeout()) {
			return line, err
		}
		l.Close() // The server has probably closed the other idle connections, too.
	default:
	}
	network := "tcp"
	if strings.HasPrefix(l.address, "/") {
		network = "unix"
	}
	dialed, err := (&net.Dialer{}).DialContext(ctx, network, l.address)
	if err != nil {
		return "", err
	}
	return l.exchangeOn(ctx, &conn{dialed, bufio.NewReaderSize(dialed, lineBytes)}, command)
}

// exchangeOn sends a command over c and returns the reply. After an error it closes c, so that a late
// reply never answers a later request.
func (l *Limiter) exchangeOn(ctx context.Context, c *conn, command string) (string, error) {
	deadline, _ := ctx.Deadline()
	err := c.SetDeadline(deadline)
	// A caller that gives up ends the exchange at once: a deadline in the past wakes reads and writes.
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	if err == nil {
		_, err = c.Write([]byte(command + "\r\n"))
	}
	var line []byte
	if err == nil {
		line, err = c.reader.ReadSlice('\n')
	}
	interrupted := !stop()
	if err != nil {
		c.Close()
		return "", err
	}
	text := strings.TrimRight(string(line), "\r\n")
	if interrupted { // The past deadline could be set after the next request has begun.
		c.Close()
	} else {
		l.idle <- c // Never blocks: idle has room for as many connections as there are slots.
	}
	return text, nil
}

// warn writes a warning, at most one a second.
func (l *Limiter) warn(format string, arguments ...any) {
	l.mu.Lock()
	now := time.Now()
	quiet := now.Before(l.warnAt)
	if !quiet {
		l.warnAt = now.Add(time.Second)
	}
	l.mu.Unlock()
	if !quiet {
		l.logf(format, arguments...)
	}
}

// encode returns the key in a form that the protocol can carry: unchanged, in base64, or as its SHA-256
// hash if it is empty or too long.
func encode(key string) string {
	token, flag := key, ""
	if !printable(key) || strings.Contains(key, " ") {
		token, flag = base64.StdEncoding.EncodeToString([]byte(key)), " b"
	}
	if len(token) == 0 || len(token) > keyChars {
		hash := sha256.Sum256([]byte(key))
		return "sha256:" + hex.EncodeToString(hash[:])
	}
	return token + flag
}

func printable(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] < 0x20 || text[i] > 0x7e {
			return false
		}
	}
	return true
}

// duration parses a number of units. It is limited to the longest Duration, and negative if the number is.
func duration(number string, unit time.Duration) (time.Duration, error) {
	const longest = time.Duration(1<<63 - 1)
	n, err := strconv.ParseInt(number, 10, 64)
	if n > int64(longest/unit) {
		return longest, err
	}
	return time.Duration(n) * unit, err
}
