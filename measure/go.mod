module github.com/sentinelgo/sentinel/measure

go 1.26.0
