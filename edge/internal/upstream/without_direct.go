//go:build sentinel_transport

package upstream

const hasDirect = false
