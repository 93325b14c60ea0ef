module github.com/sentinelgo/sentinel/edge

go 1.26.0

require (
	github.com/prometheus/client_golang v1.25.0
	github.com/sentinelgo/sentinel/core v0.1.0
	go.yaml.in/yaml/v3 v3.0.6
)

require github.com/coder/websocket v1.8.15 // indirect

replace (
	github.com/sentinelgo/sentinel/adapters/sentinelhttp => ../adapters/sentinelhttp
	github.com/sentinelgo/sentinel/core => ../core
	github.com/sentinelgo/sentinel/lua => ../lua
)
