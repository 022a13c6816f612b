package header

// MaxForwarded is the bound on a list of proxies.
const MaxForwarded = maxForwarded
