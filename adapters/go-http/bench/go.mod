module github.com/larder/larder/adapters/go-http/bench

go 1.21

require (
	github.com/bradfitz/gomemcache v0.0.0-20260422231931-4d751bb6e37c
	github.com/larder/larder/adapters/go-http v0.0.0
)

replace github.com/larder/larder/adapters/go-http => ../
