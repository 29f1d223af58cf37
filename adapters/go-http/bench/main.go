// Command bench measures the decisions of a fixed window, in memcached with gomemcache and in Larder.
// Usage: go run . HOST:PORT-OF-MEMCACHED HOST:PORT-OF-LARDER
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	larderlimit "github.com/larder/larder/adapters/go-http"
)

const (
	budget = 1 << 40
	window = 600 * time.Second
	lasts  = 3 * time.Second
	rounds = 3
)

func main() {
	client := memcache.New(os.Args[1])
	client.MaxIdleConns = 32
	client.Timeout = 5 * time.Second
	limiter, err := larderlimit.New(os.Args[2], larderlimit.Fixed(budget, window),
		larderlimit.WithConnections(32), larderlimit.WithTimeout(5*time.Second))
	check(err)

	// The usual recipe: create the counter with its expiry unless it is there, then count.
	old := func(key string) bool {
		err := client.Add(&memcache.Item{Key: key, Value: []byte("0"), Expiration: int32(window / time.Second)})
		if err != memcache.ErrNotStored {
			check(err)
		}
		used, err := client.Increment(key, 1)
		check(err)
		return used <= budget
	}
	larder := func(key string) bool {
		decision, err := limiter.Take(context.Background(), key, 1)
		check(err)
		return decision.Allowed
	}
	for _, callers := range []int{1, 32} {
		for round := 0; round < rounds; round++ {
			measure("gomemcache, add and increment", callers, old)
			measure("larderlimit", callers, larder)
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func measure(name string, callers int, hit func(key string) bool) {
	var times []time.Duration
	var mu sync.Mutex
	var group sync.WaitGroup
	end := time.Now().Add(lasts)
	for caller := 0; caller < callers; caller++ {
		prefix := "bench:" + strconv.Itoa(caller) + ":"
		group.Add(1)
		go func() {
			defer group.Done()
			var own []time.Duration
			for n := 0; time.Now().Before(end); n++ {
				began := time.Now()
				if !hit(prefix + strconv.Itoa(n%50)) {
					panic("refused")
				}
				own = append(own, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, own...)
		}()
	}
	group.Wait()
	sort.Slice(times, func(i, k int) bool { return times[i] < times[k] })
	fmt.Printf("%s, %d at a time: %d hits/s, median %v, 99 %% %v\n", name, callers,
		len(times)*int(time.Second)/int(lasts), times[len(times)/2], times[len(times)*99/100])
}
