package h2

// ErrEnding is what Open returns for a connection that ends.
var ErrEnding = errEnding
