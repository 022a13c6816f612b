package main

import (
	"io/fs"
	"os"
)

// keepOwner does nothing: a file has the rights of its folder there.
func keepOwner(*os.File, fs.FileInfo) {}
