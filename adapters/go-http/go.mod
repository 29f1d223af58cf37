module github.com/larder/larder/adapters/go-http

go 1.21
