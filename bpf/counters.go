// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package bpf

// The seven counters of the ACM protocol, in their order there.
const (
	CountError = iota
	CountResolve
	CountNoData
	CountAddrQuery
	CountAddrCache
	CountRouteQuery
	CountRouteCache
	NumCounters
)

// Counters is one row of the seven.
type Counters [NumCounters]uint64

// Add adds another row.
func (c *Counters) Add(o *Counters) {
	for i := range c {
		c[i] += o[i]
	}
}

// Door is the way in of a request.
type Door uint8

const (
	DoorUnix Door = iota
	DoorTCP
	DoorNetlink
	NumDoors
)

func (d Door) String() string { return [NumDoors]string{"unix", "tcp", "netlink"}[d] }

// Kind is what a request asks for.
type Kind uint8

const (
	KindAddress  Kind = iota // path to an address
	KindPath                 // path to a GID or LID
	KindSA                   // what the SA says
	KindPerf                 // counters
	KindEndpoint             // endpoints
	KindInvalid              // nothing that is known
	NumKinds
)

func (k Kind) String() string {
	return [NumKinds]string{"address", "path", "sa", "perf", "endpoint", "invalid"}[k]
}

// NumStatuses is how many status codes are told apart: those of the ACM protocol
// (0 to 10), and everything else in the last.
const NumStatuses = 16

// Word numbers a counter of a shard. The numbers are part of the schema.
type Word uint8

const (
	wordRequest Word = 0                         // by door and kind
	wordReply   Word = wordRequest + 8*3         // by door and status
	wordOther   Word = wordReply + NumStatuses*3 // 72
)

const (
	BytesIn       Word = wordOther + iota
	BytesOut           // bytes of replies
	DoorRefused        // RESOLVE requests that the door answered with an error; part of the totals
	Superseded         // requests that a later one of their connection replaced; never answered
	Unsent             // replies whose connection was gone
	Accepted           // connections
	Rejected           // connections closed as soon as accepted
	EndpointsFull      // endpoints that found no row and share row 0
	SAQueries          // SA flights accepted
	SARefused          // SA flights and posts refused: queue full, closed
	SASent             // SA requests sent, retries included
	SARetries
	SAAnswers    // answers that ended a flight
	SAFailures   // flights that ended without one
	SATimeouts   // tries without an answer
	SABusy       // BUSY answers
	SAOK         // answers with success
	SANoRecords  // "no records" answers
	SAErrors     // answers with another status
	SANoSA       // answers of a node without an SA
	SAMismatched // answers to another question
	SAStray      // late, duplicate or foreign answers
	MADMalformed // packets of a wrong version, length or class
	MADUnhandled // packets that nobody takes
	MADSent      // packets sent that are no SA requests
	MADSendErrors
	MADRecvErrors
	SASuspects // times that the port was doubted
	NumWords   = 128
)

// RequestWord is the counter of requests by door and kind.
func RequestWord(d Door, k Kind) Word { return wordRequest + Word(d)*8 + Word(k) }

// ReplyWord is the counter of replies by door and status.
func ReplyWord(d Door, status uint8) Word {
	return wordReply + Word(d)*NumStatuses + Word(min(status, NumStatuses-1))
}

// KernelWord numbers a word of acm_kstat: what became of a message that a client
// of the fast path sent (enum acm_kstat_word).
type KernelWord uint8

const (
	KernelHit KernelWord = iota
	KernelMiss
	KernelOdd
	KernelGuard
	KernelUnread
	KernelExpired
	KernelStale
	KernelNoSource
	KernelFail
	KernelState
	KernelDrop
	KernelDropTID
	KernelSplit
	KernelOff
	NumKernelWords = 16
)

func (w KernelWord) String() string {
	names := [...]string{"hit", "miss", "odd", "guard", "unread", "expired", "stale", "nosource", "fail", "state", "drop", "drop_tid", "split", "off"}
	if int(w) < len(names) {
		return names[w]
	}
	return ""
}

// Latency is a class of latency histogram (enum acm_lat_class).
type Latency uint8

const (
	LatKernel  Latency = iota // kernel hits; one in 64 is timed
	LatHit                    // daemon hits: from the read of a request to the write of its reply
	LatMiss                   // requests that waited for a lookup, likewise
	LatAddress                // address step of a lookup
	LatRoute                  // route step of a lookup
	LatSA                     // SA round trip, from the last send to the answer
	NumLatencies
)

func (l Latency) String() string {
	return [NumLatencies]string{"kernel", "hit", "miss", "address", "route", "sa"}[l]
}

// FabricLatency is a class of acm_sa (enum acm_sa_class).
type FabricLatency uint8

const (
	FabricQueue FabricLatency = iota // write(2) to the adapter's send queue
	FabricSend                       // send queue to send completion
	FabricTrip                       // send queue to the answer's arrival: fabric and SA
	FabricLag                        // arrival to the daemon's read(2)
	NumFabricLatencies
)

func (l FabricLatency) String() string {
	return [NumFabricLatencies]string{"queue", "send", "fabric", "lag"}[l]
}

// FabricWord numbers a counter beside the classes of acm_sa (enum acm_sa_word).
type FabricWord uint8

const (
	FabricSent      FabricWord = iota // requests given to the adapter
	FabricAgain                       // further copies of one that nothing answered
	FabricAnswer                      // answers that arrived
	FabricAmbiguous                   // those of them to a request of several copies, which are not timed
	FabricSendError                   // send completions with an error
	FabricTimeout                     // requests that the kernel gave back unanswered
	NumFabricWords
)

func (w FabricWord) String() string {
	return [NumFabricWords]string{"sent", "again", "answered", "ambiguous", "send_error", "timeout"}[w]
}

// fabricWords is the class of acm_sa that has them.
const fabricWords = 7
