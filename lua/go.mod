module github.com/sentinelgo/sentinel/lua

go 1.26.0
