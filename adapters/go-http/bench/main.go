// Command bench compares the time of a rate-limit decision with a fixed window: in memcached,
// through gomemcache, and in Larder.
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
	lasts  = time.Second
	rounds = 7
)

func main() {
	client := memcache.New(os.Args[1])
	client.MaxIdleConns = 32
	client.Timeout = 5 * time.Second
	limiter, err := larderlimit.New(os.Args[2], larderlimit.Fixed(budget, window),
		larderlimit.WithConnections(32), larderlimit.WithTimeout(5*time.Second))
	check(err)

	// The usual recipe: create the counter with its expiry if it is missing, then count.
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
	// Other work on the machine disturbs some rounds, so the best round of each case counts.
	for _, callers := range []int{1, 32} {
		var before, now result
		for round := 0; round < rounds; round++ {
			before.keepBest(measure(callers, old))
			now.keepBest(measure(callers, larder))
		}
		fmt.Printf("gomemcache, add and increment, %d at a time: %v\n", callers, before)
		fmt.Printf("larderlimit, %d at a time: %v\n", callers, now)
	}
}

type result struct {
	median time.Duration
	rate   int
}

func (r *result) keepBest(other result) {
	if r.median == 0 || other.median < r.median {
		r.median = other.median
	}
	if other.rate > r.rate {
		r.rate = other.rate
	}
}

func (r result) String() string { return fmt.Sprintf("median %v, %d hits/s", r.median, r.rate) }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func measure(callers int, hit func(key string) bool) result {
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
	return result{times[len(times)/2], len(times) * int(time.Second) / int(lasts)}
}
