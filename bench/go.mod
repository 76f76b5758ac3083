module acmd/bench

go 1.26.0

require (
	acmd v0.0.0
	github.com/maypok86/otter/v2 v2.4.0
	github.com/puzpuzpuz/xsync/v4 v4.5.0
	golang.org/x/sys v0.50.0
)

require github.com/cespare/xxhash/v2 v2.3.0 // indirect

replace acmd => ../
