package transport

// Field is a field of a request.
type Field struct{ Name, Value string }
