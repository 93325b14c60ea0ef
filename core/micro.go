package sentinel

// Micro is an amount of quota in microtokens. One token, the price of one
// request, is 1,000,000 microtokens. A rate is a Micro per second.
//
// Whole numbers only: no float takes part in a decision.
type Micro int64

// Token is one whole token, the price of one request. Write amounts as
// 10 * sentinel.Token, as one writes 10 * time.Second.
const Token Micro = 1_000_000
