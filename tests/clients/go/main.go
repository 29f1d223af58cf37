// Command work uses gomemcache as an application does: every verb, through its public API.
// Usage: work HOST:PORT
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var failed bool

func check(name string, body func() error) {
	if err := body(); err != nil {
		failed = true
		fmt.Printf("FAIL %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok %s\n", name)
}

func want(got, wanted interface{}) error {
	if got != wanted {
		return fmt.Errorf("got %v, wanted %v", got, wanted)
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// value returns the stored text of key, or the error as text.
func value(c *memcache.Client, key string) string {
	item, err := c.Get(key)
	if err != nil {
		return err.Error()
	}
	return string(item.Value)
}

func stores(c *memcache.Client) {
	check("ping", c.Ping)
	check("delete all", c.DeleteAll)
	check("get of a missing key", func() error {
		_, err := c.Get("missing")
		return want(err, memcache.ErrCacheMiss)
	})
	check("set and get with flags", func() error {
		err := c.Set(&memcache.Item{Key: "a", Value: []byte("one"), Flags: 1<<32 - 1, Expiration: 600})
		item, getErr := c.Get("a")
		if err := first(err, getErr); err != nil {
			return err
		}
		return first(want(string(item.Value), "one"), want(item.Flags, uint32(1<<32-1)))
	})
	check("value of 1,000,000 bytes", func() error {
		big := bytes.Repeat([]byte("x"), 1000000)
		err := c.Set(&memcache.Item{Key: "big", Value: big})
		return first(err, want(len(value(c, "big")), len(big)))
	})
	check("add and replace", func() error {
		item := &memcache.Item{Key: "new", Value: []byte("1")}
		return first(
			want(c.Replace(item), memcache.ErrNotStored),
			c.Add(item),
			want(c.Add(item), memcache.ErrNotStored),
			c.Replace(&memcache.Item{Key: "new", Value: []byte("2")}),
			want(value(c, "new"), "2"))
	})
	check("append and prepend", func() error {
		return first(
			c.Append(&memcache.Item{Key: "new", Value: []byte("3")}),
			c.Prepend(&memcache.Item{Key: "new", Value: []byte("1")}),
			want(value(c, "new"), "123"))
	})
	check("compare and swap", func() error {
		mine, err := c.Get("a")
		theirs, err2 := c.Get("a")
		if err := first(err, err2); err != nil {
			return err
		}
		theirs.Value = []byte("two")
		mine.Value = []byte("three")
		return first(c.CompareAndSwap(theirs), want(c.CompareAndSwap(mine), memcache.ErrCASConflict))
	})
	check("delete", func() error {
		return first(c.Delete("new"), want(c.Delete("new"), memcache.ErrCacheMiss))
	})
}

func counts(c *memcache.Client, address string) {
	check("increment and decrement", func() error {
		_, missing := c.Increment("n", 1)
		set := c.Set(&memcache.Item{Key: "n", Value: []byte("10")})
		up, err := c.Increment("n", 5)
		down, err2 := c.Decrement("n", 100)
		return first(want(missing, memcache.ErrCacheMiss), set, err, err2, want(up, uint64(15)), want(down, uint64(0)))
	})
	check("eight clients do not lose increments", func() error {
		if err := c.Set(&memcache.Item{Key: "shared", Value: []byte("0")}); err != nil {
			return err
		}
		errs := make(chan error, 8)
		var all sync.WaitGroup
		for i := 0; i < 8; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				own := memcache.New(address)
				own.Timeout = 5 * time.Second
				for n := 0; n < 500; n++ {
					if _, err := own.Increment("shared", 1); err != nil {
						errs <- err
						return
					}
				}
			}()
		}
		all.Wait()
		close(errs)
		return first(<-errs, want(value(c, "shared"), "4000"))
	})
}

func reads(c *memcache.Client) {
	check("get of 1,000 keys at once", func() error {
		keys := []string{"missing"}
		for i := 0; i < 1000; i++ {
			key := fmt.Sprintf("multi%d", i)
			keys = append(keys, key)
			if err := c.Set(&memcache.Item{Key: key, Value: []byte(key)}); err != nil {
				return err
			}
		}
		items, err := c.GetMulti(keys)
		if err != nil {
			return err
		}
		for key, item := range items {
			if err := want(string(item.Value), key); err != nil {
				return err
			}
		}
		return want(len(items), 1000)
	})
	check("touch and get-and-touch", func() error {
		_, missing := c.GetAndTouch("missing", 60)
		item, err := c.GetAndTouch("a", 60)
		if err != nil {
			return err
		}
		return first(
			want(string(item.Value), "two"),
			want(missing, memcache.ErrCacheMiss),
			c.Touch("a", 120),
			want(c.Touch("missing", 60), memcache.ErrCacheMiss))
	})
	check("expiry", func() error {
		if err := c.Set(&memcache.Item{Key: "brief", Value: []byte("1"), Expiration: 1}); err != nil {
			return err
		}
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if _, err := c.Get("brief"); errors.Is(err, memcache.ErrCacheMiss) {
				return nil
			}
		}
		return errors.New("still there after 10 s")
	})
	check("flush_all", func() error {
		return first(c.FlushAll(), want(value(c, "a"), memcache.ErrCacheMiss.Error()))
	})
}

func main() {
	c := memcache.New(os.Args[1])
	c.Timeout = 5 * time.Second
	stores(c)
	counts(c, os.Args[1])
	reads(c)
	if failed {
		os.Exit(1)
	}
}
