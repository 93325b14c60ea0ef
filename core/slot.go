package sentinel

import (
	"errors"
	"net"
	"strconv"
	"strings"
)

// clusterSlots is how many slots a Redis Cluster has.
const clusterSlots = 1 << 14

// slotOf returns the slot of a key: CRC16/XMODEM of what stands between the first
// { and the next }, or of the whole key where nothing does.
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#key-distribution-model
func slotOf(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if length := strings.IndexByte(key[open+1:], '}'); length > 0 {
			key = key[open+1 : open+1+length]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return crc % clusterSlots
}

// crcTable is the polynomial x^16 + x^12 + x^5 + 1, a byte at a time.
var crcTable = func() (t [256]uint16) {
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= 0x1021
			}
		}
		t[i] = crc
	}
	return t
}()

// redirect is where a node of a cluster sends a question that it has not
// executed.
type redirect struct {
	// addr is host:port; without a host the node that answered means its own,
	// and "" is that very node: ask it again, alone.
	addr string
	// asking: for this question alone, while the slot is on its way.
	asking bool
}

// classifyCluster returns the failure where an error reply is about the cluster
// and not about the question, nil for every other reply. Nothing has been executed then.
func classifyCluster(text string) *storeFailure {
	code := errorCode(text)
	f := &storeFailure{kind: kindErrorReply, detail: "Redis answered " + code}
	switch code {
	case "MOVED", "ASK":
		addr, err := parseRedirect(text)
		if err != nil {
			return nil
		}
		f.redirect = &redirect{addr: addr, asking: code == "ASK"}
	case "TRYAGAIN":
		f.redirect = &redirect{}
	case "CLUSTERDOWN":
		f.clusterDown = true
	default:
		return nil
	}
	return f
}

// parseRedirect reads "MOVED 3999 127.0.0.1:6381", or ASK: the address as
// host:port, with IPv6 in brackets.
func parseRedirect(text string) (addr string, err error) {
	fields := strings.Split(text, " ")
	if len(fields) != 3 {
		return "", errors.New("sentinel: a redirection of another shape")
	}
	if slot, ok := parseDigits(fields[1], clusterSlots-1); !ok || slot < 0 {
		return "", errors.New("sentinel: a redirection without a slot")
	}
	colon := strings.LastIndexByte(fields[2], ':')
	if colon < 0 {
		return "", errors.New("sentinel: a redirection without a port")
	}
	return nodeAddr(fields[2][:colon], fields[2][colon+1:])
}

// nodeAddr joins what a node says of itself or another: an address, a name, or
// nothing, and a port.
func nodeAddr(host, port string) (string, error) {
	if n, ok := parseDigits(port, 65535); !ok || n < 1 {
		return "", errors.New("sentinel: a node without a port")
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "?" { // it does not know
		host = ""
	}
	if strings.ContainsAny(host, "[]/ ") {
		return "", errors.New("sentinel: a node at no host")
	}
	return net.JoinHostPort(host, port), nil
}

// resolveNode fills in the host that a node at from did not say: its own.
func resolveNode(addr, from string) string {
	if host, port, err := net.SplitHostPort(addr); err == nil && host == "" {
		if own, _, err := net.SplitHostPort(from); err == nil {
			return net.JoinHostPort(own, port)
		}
	}
	return addr
}

// slotRange is slots that one master serves.
type slotRange struct {
	low, high int
	master    string // host:port
}

// parseSlots reads the answer to CLUSTER SLOTS of the node at from: arrays of
// the first slot, the last, the master and its replicas, where a node is an
// array of host, port and more.
func parseSlots(reply []any, from string) ([]slotRange, error) {
	bad := errors.New("redis: an answer to CLUSTER SLOTS of another shape")
	var ranges []slotRange
	for _, each := range reply {
		parts, ok := each.([]any)
		if !ok || len(parts) < 3 {
			return nil, bad
		}
		low, isLow := parts[0].(int64)
		high, isHigh := parts[1].(int64)
		master, ok := parts[2].([]any)
		if !isLow || !isHigh || !ok || len(master) < 2 || low < 0 || high < low || high >= clusterSlots {
			return nil, bad
		}
		host, _ := master[0].(string) // nil: the one that was asked
		port, ok := master[1].(int64)
		if !ok {
			return nil, bad
		}
		addr, err := nodeAddr(host, strconv.FormatInt(port, 10))
		if err != nil {
			return nil, bad
		}
		ranges = append(ranges, slotRange{low: int(low), high: int(high), master: resolveNode(addr, from)})
	}
	return ranges, nil
}

// startCheck is the key of the start check: nobody's.
const startCheck = "sentinel:start-check"

// checkKey returns a key for the start check in one of the slots.
func (r slotRange) checkKey() string {
	for n := 0; ; n++ {
		key := startCheck + ":" + strconv.Itoa(n)
		if slot := int(slotOf(key)); r.low <= slot && slot <= r.high {
			return key
		}
	}
}
