package rewrite

// MaxForwarded is the maximum length of a Forwarded value in bytes.
const MaxForwarded = maxForwarded
