package larderlimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	processes  = 3
	goroutines = 8
)

// limitNamed returns the limit of the named algorithm. Test processes get their settings as text.
func limitNamed(name string, budget uint64, window time.Duration, burst uint64) Limit {
	switch name {
	case "fixed":
		return Fixed(budget, window)
	case "sliding":
		return Sliding(budget, window)
	}
	return GCRA(budget, window, burst)
}

// TestMain runs the tests. If LARDERLIMIT_TEST_APP is set, it serves an application with one limiter instead.
func TestMain(m *testing.M) {
	settings := os.Getenv("LARDERLIMIT_TEST_APP")
	if settings == "" {
		os.Exit(m.Run())
	}
	var name, address, prefix string
	var budget, burst uint64
	var window time.Duration
	if _, err := fmt.Sscan(settings, &name, &address, &prefix, &budget, &window, &burst); err != nil {
		panic(err)
	}
	l, err := New(address, limitNamed(name, budget, window, burst), WithPrefix(prefix),
		WithFailClosed(), WithTimeout(5*time.Second))
	if err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr())
	panic(http.Serve(listener, l.Handler(hello)))
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// program starts a process, and stops it when the test ends.
func program(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(command) })
}

func stop(command *exec.Cmd) {
	_ = command.Process.Signal(os.Interrupt)
	_, _ = command.Process.Wait()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	return listener.Addr().String()
}

func waitFor(t *testing.T, address string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func startLarder(t *testing.T, address string) *exec.Cmd {
	t.Helper()
	server := os.Getenv("SERVER")
	if server == "" {
		server = "../../target/release/larder"
	}
	_, port, _ := net.SplitHostPort(address)
	command := exec.Command(server, "serve", "-p", port, "--admin", "off")
	program(t, command)
	waitFor(t, address)
	return command
}

func larder(t *testing.T) string {
	t.Helper()
	address := freeAddress(t)
	startLarder(t, address)
	return address
}

// listen calls serve with each connection to the returned address.
func listen(t *testing.T, serve func(n int, c net.Conn)) string {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for n := 1; ; n++ {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(n, c)
		}
	}()
	return listener.Addr().String()
}

// logs collects warnings.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) logf(format string, arguments ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, arguments...))
}

func newLimiter(t *testing.T, address string, limit Limit, options ...Option) *Limiter {
	t.Helper()
	// A busy machine must not fail tests that are not about time limits.
	l := must(New(address, limit, append([]Option{WithTimeout(5 * time.Second)}, options...)...))(t)
	t.Cleanup(l.Close)
	return l
}

func take(t *testing.T, l *Limiter, key string, cost uint64) Decision {
	t.Helper()
	return must(l.Take(context.Background(), key, cost))(t)
}

// get passes a request from the address remote to a handler, and returns the response.
func get(handler http.Handler, remote string) *http.Response {
	request := httptest.NewRequest("GET", "/", nil)
	request.RemoteAddr = remote
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	return recorder.Result()
}

// applications starts processes that share a limit, and returns their URLs.
func applications(t *testing.T, name, address, prefix string, budget uint64, window time.Duration, burst uint64) []string {
	t.Helper()
	var urls []string
	for i := 0; i < processes; i++ {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(),
			"LARDERLIMIT_TEST_APP="+fmt.Sprintln(name, address, prefix, budget, int64(window), burst))
		output := must(command.StdoutPipe())(t)
		program(t, command)
		var listening string
		if _, err := fmt.Fscan(output, &listening); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "http://"+listening)
	}
	return urls
}

// answer holds the times at which an admitted request was sent and answered.
type answer struct{ sent, received time.Time }

// hammer sends requests to all applications at once. Each connection sends the given number, or as
// many as fit into a duration. hammer returns the admitted requests, in the order of their answers.
func hammer(t *testing.T, urls []string, requests int, lasts time.Duration) (admitted []answer, took time.Duration) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: goroutines}}
	defer client.CloseIdleConnections()
	began := time.Now()
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := 0; i < len(urls)*goroutines; i++ {
		url := urls[i%len(urls)]
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; n < requests || (requests == 0 && time.Since(began) < lasts); n++ {
				sent := time.Now()
				response, err := client.Get(url)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
				switch response.StatusCode {
				case http.StatusOK:
					mu.Lock()
					admitted = append(admitted, answer{sent, time.Now()})
					mu.Unlock()
				case http.StatusTooManyRequests:
				default:
					t.Errorf("status %d", response.StatusCode)
					return
				}
			}
		}()
	}
	group.Wait()
	sort.Slice(admitted, func(i, k int) bool { return admitted[i].received.Before(admitted[k].received) })
	return admitted, time.Since(began)
}

// most returns the largest number of requests that were certainly admitted within one interval of
// the given length.
func most(admitted []answer, interval time.Duration) int {
	largest := 0
	for _, from := range admitted {
		n := 0
		for _, a := range admitted {
			if !a.sent.Before(from.sent) && a.received.Sub(from.sent) <= interval {
				n++
			}
		}
		if n > largest {
			largest = n
		}
	}
	return largest
}

func TestProcessesAdmitExactlyTheBudgetTogether(t *testing.T) {
	address := larder(t)
	for _, name := range []string{"fixed", "sliding", "gcra"} {
		urls := applications(t, name, address, name+":", 100, 24*time.Hour, 100)
		admitted, _ := hammer(t, urls, 20, 0)
		if len(admitted) != 100 {
			t.Errorf("%s: admitted %d of 100", name, len(admitted))
		}
	}
}

func TestEachFixedWindowAdmitsExactlyTheBudget(t *testing.T) {
	const budget, window = 50, 700 * time.Millisecond
	urls := applications(t, "fixed", larder(t), "windows:", budget, window, 0)
	admitted, _ := hammer(t, urls, 0, 7*window/2)
	if len(admitted) <= 2*budget {
		t.Errorf("admitted %d", len(admitted))
	}
	for i := 0; i+budget < len(admitted); i += budget {
		// A window begins after its first request was sent. The next window begins at least one
		// window length later.
		first := admitted[i].sent
		for _, a := range admitted[i : i+budget] {
			if a.sent.Before(first) {
				first = a.sent
			}
		}
		if next := admitted[i+budget].received; next.Sub(first) < window {
			t.Errorf("window %d admitted too many: the next began after %v", i/budget, next.Sub(first))
		}
	}
}

func TestAnySlidingWindowAdmitsLessThanTwiceTheBudget(t *testing.T) {
	const budget, window = 50, 700 * time.Millisecond
	urls := applications(t, "sliding", larder(t), "slides:", budget, window, 0)
	admitted, _ := hammer(t, urls, 0, 4*window)
	if n := most(admitted, window); n >= 2*budget || len(admitted) <= 2*budget {
		t.Errorf("admitted %d in a window, %d in all", n, len(admitted))
	}
}

func TestGCRAAdmitsTheBurstAndTheRefill(t *testing.T) {
	const budget, burst = 100, 20
	urls := applications(t, "gcra", larder(t), "bucket:", budget, time.Second, burst)
	admitted, took := hammer(t, urls, 0, 2*time.Second)
	if limit := burst + int(took*budget/time.Second); len(admitted) > limit || len(admitted) <= 2*burst {
		t.Errorf("admitted %d, wanted at most %d", len(admitted), limit)
	}
	if n := most(admitted, time.Second/2); n > burst+budget/2 {
		t.Errorf("admitted %d in half a second", n)
	}
}

func TestHeadersTellTheDecision(t *testing.T) {
	l := newLimiter(t, larder(t), Sliding(2, time.Minute), WithName("api"))
	handler := l.Handler(hello)
	want := func(response *http.Response, status int, fields ...string) {
		t.Helper()
		if response.StatusCode != status {
			t.Errorf("status %d, wanted %d", response.StatusCode, status)
		}
		for i := 0; i < len(fields); i += 2 {
			if got := response.Header.Get(fields[i]); got != fields[i+1] {
				t.Errorf("%s: %q, wanted %q", fields[i], got, fields[i+1])
			}
		}
	}
	policy := `"api";q=2;w=60`
	want(get(handler, "192.0.2.1:9"), 200, "RateLimit-Policy", policy, "RateLimit", `"api";r=1;t=120`, "Retry-After", "")
	want(get(handler, "192.0.2.1:9"), 200, "RateLimit-Policy", policy, "RateLimit", `"api";r=0;t=120`, "Retry-After", "")
	// Until half of the next window has passed, a sliding window still counts more than one of the
	// two units. So the next unit is free after 1.5 windows.
	want(get(handler, "192.0.2.1:9"), 429, "RateLimit-Policy", policy, "RateLimit", `"api";r=0;t=90`, "Retry-After", "90")
	want(get(handler, "192.0.2.2:9"), 200)
	// Both addresses are in one /64 network, so they share a limit.
	want(get(handler, "[2001:db8::1]:9"), 200, "RateLimit", `"api";r=1;t=120`)
	want(get(handler, "[2001:db8::2]:9"), 200, "RateLimit", `"api";r=0;t=120`)

	endless := newLimiter(t, l.address, Fixed(1, 0), WithName("once"), WithPrefix("once:")).Handler(handler)
	response := get(endless, "192.0.2.3:9")
	want(response, 200, "RateLimit-Policy", `"once";q=1`, "RateLimit", `"once";r=0`)
	if all := response.Header.Values("RateLimit-Policy"); len(all) != 2 || all[1] != policy {
		t.Errorf("policies of nested limiters: %q", all)
	}
	want(get(endless, "192.0.2.3:9"), 429, "RateLimit", `"once";r=0`, "Retry-After", "")
}

func TestOptionsOfTheHandler(t *testing.T) {
	l := newLimiter(t, larder(t), Fixed(10, time.Minute),
		WithKey(func(r *http.Request) string { return "all" }),
		WithCost(func(r *http.Request) uint64 { return 4 }),
		WithRejected(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(420) })))
	for i, status := range []int{200, 200, 420} {
		if got := get(l.Handler(hello), "192.0.2.1:9").StatusCode; got != status {
			t.Errorf("request %d: status %d", i, got)
		}
	}
}

func TestTakeLookGiveBackReset(t *testing.T) {
	address := larder(t)
	for _, name := range []string{"fixed", "sliding", "gcra"} {
		l := newLimiter(t, address, limitNamed(name, 10, 24*time.Hour, 10), WithPrefix(name))
		steps := []struct {
			cost, remaining uint64
			allowed         bool
		}{{0, 10, true}, {7, 3, true}, {4, 3, false}, {0, 3, true}, {11, 3, false}, {3, 0, true}}
		for _, step := range steps {
			d := take(t, l, "k", step.cost)
			if d.Allowed != step.allowed || d.Remaining != step.remaining {
				t.Errorf("%s: cost %d: %+v", name, step.cost, d)
			}
			if (d.Retry == 0) != step.allowed || (d.Retry < 0) != (step.cost == 11) {
				t.Errorf("%s: cost %d: retry %v", name, step.cost, d.Retry)
			}
		}
		if err := l.GiveBack(context.Background(), "k", 2); err != nil {
			t.Error(err)
		}
		if d := take(t, l, "k", 0); d.Remaining != 2 || d.Reset <= 0 {
			t.Errorf("%s: given back: %+v", name, d)
		}
		if err := l.Reset(context.Background(), "k"); err != nil {
			t.Error(err)
		}
		if d := take(t, l, "k", 0); d.Remaining != 10 || d.Reset != 0 {
			t.Errorf("%s: reset: %+v", name, d)
		}
	}
}

func TestEachKeyIsALimiterOfItsOwn(t *testing.T) {
	l := newLimiter(t, larder(t), Fixed(2, time.Minute), WithPrefix(""))
	long := strings.Repeat("x", 249)
	keys := []string{"a b", "a\tb", "a\r\nb", "ab", "ä", "\x00", "日本", long, long + "y", long + "yy", long + "yz", "",
		strings.Repeat(" ", 186), strings.Repeat(" ", 187), strings.Repeat(" ", 250), strings.Repeat("\xff", 300)}
	for _, remaining := range []uint64{1, 0} {
		for _, key := range keys {
			if d := take(t, l, key, 1); d.Remaining != remaining {
				t.Errorf("%q: %d remain, wanted %d", key, d.Remaining, remaining)
			}
		}
	}
	if got := encode("a b"); got != "YSBi b" {
		t.Errorf("encoded as %q", got)
	}
}

func TestBadSettingsAreRefused(t *testing.T) {
	for _, limit := range []Limit{{}, Sliding(1, 0), GCRA(1, 0, 1), Fixed(1, -time.Second), Fixed(1, time.Microsecond)} {
		if _, err := New("127.0.0.1:1", limit); err == nil {
			t.Errorf("%+v was taken", limit)
		}
	}
	for _, option := range []Option{WithName(`a"b`), WithName("a\nb"), WithConnections(0)} {
		if _, err := New("127.0.0.1:1", Fixed(1, time.Second), option); err == nil {
			t.Error("a bad option was taken")
		}
	}
}

// fails checks how a handler answers while its server is away.
func fails(t *testing.T, address string, least, mostTime time.Duration, why string) {
	t.Helper()
	for status, options := range map[int][]Option{200: nil, 503: {WithFailClosed()}} {
		var warnings logs
		options = append(options, WithLogf(warnings.logf), WithBackoff(time.Minute))
		l := must(New(address, Fixed(5, time.Minute), options...))(t)
		handler := l.Handler(hello)
		var group sync.WaitGroup
		for i := 0; i < 40; i++ { // More callers than the limiter has connections.
			group.Add(1)
			go func() {
				defer group.Done()
				began := time.Now()
				if got := get(handler, "192.0.2.1:9").StatusCode; got != status {
					t.Errorf("status %d, wanted %d", got, status)
				}
				if took := time.Since(began); took > mostTime || took < least {
					t.Errorf("took %v", took)
				}
			}()
		}
		group.Wait()
		if _, err := l.Take(context.Background(), "k", 1); err == nil || !strings.Contains(err.Error(), "a moment ago") {
			t.Errorf("error %v after a failure", err)
		}
		if len(warnings.lines) != 1 || !strings.Contains(warnings.lines[0], why) {
			t.Errorf("warnings %q", warnings.lines)
		}
	}
}

func TestNoServerListens(t *testing.T) {
	fails(t, freeAddress(t), 0, time.Second, "Larder is unavailable")
}

func TestAServerThatNeverAnswers(t *testing.T) {
	fails(t, listen(t, func(_ int, c net.Conn) { _, _ = io.Copy(io.Discard, c) }),
		50*time.Millisecond, time.Second, "Larder is unavailable")
}

func TestALateAnswerNeverReachesALaterRequest(t *testing.T) {
	second := make(chan struct{})
	var once sync.Once
	address := listen(t, func(n int, c net.Conn) {
		buffer := make([]byte, 1000)
		for commands := 1; ; commands++ {
			if _, err := c.Read(buffer); err != nil {
				return
			}
			// The server answers the first command only when the second one arrives.
			if n == 1 && commands == 1 {
				go func() {
					<-second
					fmt.Fprint(c, "HD r1 t60 w0\r\n")
				}()
				continue
			}
			once.Do(func() { close(second) })
			fmt.Fprintf(c, "HD r%d t60 w0\r\n", n)
		}
	})
	l := newLimiter(t, address, Fixed(5, time.Minute), WithTimeout(100*time.Millisecond), WithBackoff(0))
	if _, err := l.Take(context.Background(), "k", 1); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("error %v", err)
	}
	for i := 0; i < 2; i++ {
		if d := take(t, l, "k", 1); d.Remaining != 2 {
			t.Errorf("%+v", d)
		}
	}
}

func TestAServerThatAnswersNonsense(t *testing.T) {
	for _, nonsense := range []string{"HD rx tx wx", "HD rx t60 w0", "", strings.Repeat("x", 5000), "SERVER_ERROR out of memory"} {
		nonsense := nonsense
		address := listen(t, func(_ int, c net.Conn) { fmt.Fprintf(c, "%s\r\n", nonsense) })
		l := newLimiter(t, address, Fixed(5, time.Minute))
		if _, err := l.Take(context.Background(), "k", 1); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%.20q: error %v", nonsense, err)
		}
	}
}

func TestACallerInAHurryIsNoFailureOfTheServer(t *testing.T) {
	l := newLimiter(t, larder(t), Fixed(5, time.Minute))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := 0; i < 20; i++ { // At random, a call fails before or while it connects.
		if _, err := l.Take(ctx, "k", 1); !errors.Is(err, ErrUnavailable) {
			t.Errorf("error %v", err)
		}
	}
	take(t, l, "k", 1)
}

func TestACallerThatCancelsDoesNotWaitForTheServer(t *testing.T) {
	asked := make(chan struct{}, 1)
	address := listen(t, func(_ int, c net.Conn) {
		_, _ = c.Read(make([]byte, 1000))
		asked <- struct{}{}
		_, _ = io.Copy(io.Discard, c)
	})
	l := newLimiter(t, address, Fixed(5, time.Minute), WithTimeout(time.Minute))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	began := time.Now()
	if _, err := l.Take(ctx, "k", 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v after the caller had cancelled", took)
	}
}

func TestAClientThatCancelsDoesNotGetPastTheLimit(t *testing.T) {
	l := newLimiter(t, larder(t), Fixed(0, time.Minute))
	handler := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("admitted") }))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := 0; i < 20; i++ { // At random, a call with this context fails before or while it connects.
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
		if recorder.Code != http.StatusTooManyRequests {
			t.Errorf("status %d", recorder.Code)
		}
	}
}

func TestUnitsAreNeverGivenBackTwice(t *testing.T) {
	var givenBack atomic.Int32
	// The server executes MD, and closes the connection without an answer.
	address := listen(t, func(_ int, c net.Conn) {
		defer c.Close()
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if strings.Contains(lines.Text(), " MD ") {
				givenBack.Add(1)
				return
			}
			fmt.Fprint(c, "HD r1 t60 w0\r\n")
		}
	})
	l := newLimiter(t, address, Fixed(5, time.Minute), WithConnections(1))
	take(t, l, "k", 1) // Leaves an idle connection.
	if err := l.GiveBack(context.Background(), "k", 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	if n := givenBack.Load(); n != 1 {
		t.Errorf("given back %d times", n)
	}
}

func TestGiveBackAfterTheServerHasClosedTheIdleConnection(t *testing.T) {
	address := freeAddress(t)
	server := startLarder(t, address)
	l := newLimiter(t, address, Fixed(5, time.Minute), WithConnections(1))
	take(t, l, "k", 1)
	stop(server)
	startLarder(t, address)
	for i := 0; i < 2; i++ { // The second call closes the connection that the first one has left.
		if err := l.GiveBack(context.Background(), "k", 1); err != nil {
			t.Error(err)
		}
	}
}

func TestTheServerComesBack(t *testing.T) {
	address := freeAddress(t)
	server := startLarder(t, address)
	l := newLimiter(t, address, Fixed(5, time.Minute), WithBackoff(0))
	for i := 0; i < 3; i++ {
		// In round 1, the limiter's idle connection is one that the stopped server has closed. The
		// limiter must then connect again without an error.
		if d := take(t, l, "k", 1); d.Remaining != 4 {
			t.Errorf("round %d: %+v", i, d)
		}
		stop(server)
		if i == 1 {
			if _, err := l.Take(context.Background(), "k", 1); !errors.Is(err, ErrUnavailable) {
				t.Errorf("error %v", err)
			}
		}
		server = startLarder(t, address)
	}
}

func TestMemcachedIsToldApart(t *testing.T) {
	memcached := os.Getenv("MEMCACHED")
	if memcached == "" {
		memcached = "/usr/bin/memcached"
	}
	if _, err := os.Stat(memcached); err != nil {
		t.Skip(err)
	}
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	arguments := []string{"-l", "127.0.0.1", "-p", port, "-U", "0"}
	if os.Getuid() == 0 {
		arguments = append(arguments, "-u", "nobody")
	}
	program(t, exec.Command(memcached, arguments...))
	waitFor(t, address)
	var warnings logs
	l := newLimiter(t, address, Fixed(5, time.Minute), WithLogf(warnings.logf))
	if _, err := l.Take(context.Background(), "k", 1); err != ErrNoLimits {
		t.Errorf("error %v", err)
	}
	if status := get(l.Handler(hello), "192.0.2.1:9").StatusCode; status != 500 {
		t.Errorf("status %d", status)
	}
	if len(warnings.lines) != 1 || !strings.Contains(warnings.lines[0], ErrNoLimits.Error()) {
		t.Errorf("warnings %q", warnings.lines)
	}
}
