// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package metrics

import (
	"acmd/cache"
	"acmd/mad/transport"
	"acmd/mad/verbs"
	"acmd/resolver"
	"acmd/resolver/acmp"
	"acmd/resolver/hostnet"
	"acmd/resolver/neigh"

	"github.com/prometheus/client_golang/prometheus"
)

// What the rooms of the house count beside the seven counters.

var clientMetrics = []family[Clients]{
	gauge("clients", "Client connections now.", func(c *Clients) int64 { return c.Open }),
	gauge("clients_pending_requests", "Requests of clients that wait for a lookup now.", func(c *Clients) int64 { return c.Pending }),
	counter("clients_accepted_total", "Client connections accepted.", func(c *Clients) uint64 { return c.Accepted }),
	counter("clients_accept_pauses_total", "Times that accepting had to pause.", func(c *Clients) uint64 { return c.Paused }),
	counter("client_received_bytes_total", "Bytes of requests.", func(c *Clients) uint64 { return c.BytesIn }),
	counter("client_sent_bytes_total", "Bytes of replies.", func(c *Clients) uint64 { return c.BytesOut }),
	counter("client_malformed_requests_total", "Resolve requests whose body is not valid.", func(c *Clients) uint64 { return c.Malformed }),
	counter("client_refused_requests_total", "Requests refused because too many wait.", func(c *Clients) uint64 { return c.Refused }),
	counter("client_superseded_requests_total", "Requests with transaction id 0 that another one replaced.", func(c *Clients) uint64 { return c.Superseded }),
}

var (
	clientsRejected = desc("clients_rejected_total", "Client connections closed as soon as they came, by reason.", "reason")
	clientsClosed   = desc("clients_closed_total", "Client connections that ended, by reason.", "reason")
	clientFaults    = desc("client_faults_total", "Messages with a header that is not valid, by reason.", "reason")
)

var engineMetrics = []family[resolver.Stats]{
	gauge("flights", "Lookups under way.", func(s *resolver.Stats) int64 { return int64(s.Flights) }),
	gauge("flight_waiters", "Requests that wait for them.", func(s *resolver.Stats) int64 { return int64(s.Waiters) }),
	counter("flights_started_total", "Lookups started.", func(s *resolver.Stats) uint64 { return s.Started }),
	counter("flights_joined_total", "Requests that joined a lookup of others.", func(s *resolver.Stats) uint64 { return s.Joined }),
	counter("flights_refused_total", "Requests refused because too many lookups or waiters are there.", func(s *resolver.Stats) uint64 { return s.Refused }),
	counter("flights_voided_total", "Results thrown away because something was invalidated meanwhile.", func(s *resolver.Stats) uint64 { return s.Voided }),
	counter("late_requests_total", "Requests whose time was over before their lookup ended.", func(s *resolver.Stats) uint64 { return s.LateWaiters }),
	counter("sa_route_questions_total", "Questions for a path to a known address.", func(s *resolver.Stats) uint64 { return s.RouteAsks }),
	counter("sa_coalesced_total", "Questions for a path that joined the query of another.", func(s *resolver.Stats) uint64 { return s.RouteShared }),
	counter("cache_refreshes_total", "Lookups behind a hit.", func(s *resolver.Stats) uint64 { return s.Refreshes }),
	counter("cache_refreshes_dropped_total", "Lookups behind a hit that were due but found no room.", func(s *resolver.Stats) uint64 { return s.RefreshDropped }),
	counter("cache_negative_total", "Failures remembered.", func(s *resolver.Stats) uint64 { return s.Negative }),
	counter("notices_total", "Notices of the SM about ports, groups and routes.", func(s *resolver.Stats) uint64 { return s.Notices }),
	counter("notice_drops_total", "Paths dropped because of them.", func(s *resolver.Stats) uint64 { return s.NoticeDrops }),
	counter("path_tables_total", "Times that the paths to all ports came at once.", func(s *resolver.Stats) uint64 { return s.Tables }),
	counter("path_table_failures_total", "Times that they did not.", func(s *resolver.Stats) uint64 { return s.TableFailures }),
	gauge("path_table_paths", "Paths that came so and hold.", func(s *resolver.Stats) int64 { return int64(s.TablePaths) }),
	counter("path_table_routes_total", "Routes found among them, for which the SA was not asked.", func(s *resolver.Stats) uint64 { return s.TableRoutes }),
	counter("source_questions_total", "Questions to the host's routing for a source address.", func(s *resolver.Stats) uint64 { return s.SourceAsks }),
}

var cacheMetrics = []family[cache.Stats]{
	gauge("cache_entries", "Paths and remembered failures in the cache.", func(s *cache.Stats) int64 { return int64(s.Entries) }),
	gauge("cache_capacity", "Most entries that the cache holds.", func(s *cache.Stats) int64 { return int64(s.Capacity) }),
	counter("cache_puts_total", "Entries published.", func(s *cache.Stats) uint64 { return s.Puts }),
	counter("cache_puts_overtaken_total", "Entries not published because what they say was invalidated meanwhile.", func(s *cache.Stats) uint64 { return s.Rejected }),
	counter("cache_puts_refused_total", "Entries not published because they are malformed.", func(s *cache.Stats) uint64 { return s.Refused }),
	counter("cache_evictions_total", "Entries that made room for others.", func(s *cache.Stats) uint64 { return s.Evicted }),
	counter("cache_expirations_total", "Entries whose life was over.", func(s *cache.Stats) uint64 { return s.Expired }),
	counter("cache_invalidations_total", "Entries dropped because an event or an order made them void.", func(s *cache.Stats) uint64 { return s.Dropped }),
}

var portMetrics = []family[Port]{
	gauge("sa_inflight", "SA queries under way.", func(p *Port) int64 { return int64(p.SA.Outstanding) }, atPort...),
	gauge("sa_window", "Most SA queries at a time; it follows how the SA answers.", func(p *Port) int64 { return int64(p.SA.Window) }, atPort...),
	gauge("sa_queued", "SA queries that wait for the window.", func(p *Port) int64 { return int64(p.SA.Queued) }, atPort...),
	counter("sa_queries_total", "SA queries.", func(p *Port) uint64 { return p.SA.Queries }, atPort...),
	counter("sa_answers_total", "SA queries that the SA answered, whatever it said.", func(p *Port) uint64 { return p.SA.Answers }, atPort...),
	counter("sa_failures_total", "SA queries that ended without a record.", func(p *Port) uint64 { return p.SA.Failures }, atPort...),
	counter("sa_refused_total", "SA queries refused because too many wait.", func(p *Port) uint64 { return p.SA.Refused }, atPort...),
	counter("sa_retries_total", "Tries after the first of a query.", func(p *Port) uint64 { return p.SA.Retries }, atPort...),
	counter("sa_timeouts_total", "Tries without an answer.", func(p *Port) uint64 { return p.SA.Timeouts }, atPort...),
	counter("sa_requests_sent_total", "SA requests sent, retries included.", func(p *Port) uint64 { return p.SA.Sent }, atPort...),
	gauge("sa_subscriptions", "Kinds of notices that the SM sends to this port.", func(p *Port) int64 { return int64(p.SA.Subscribed) }, atPort...),
	counter("sa_subscriptions_made_total", "Times that all of them were subscribed to.", func(p *Port) uint64 { return p.SA.Subscriptions }, atPort...),
	counter("sa_subscription_failures_total", "Subscriptions that the SM did not take.", func(p *Port) uint64 { return p.SA.SubscribeErrors }, atPort...),
	counter("sa_reports_total", "Notices taken.", func(p *Port) uint64 { return p.SA.Reports }, atPort...),
	counter("mad_datagrams_sent_total", "Packets sent to others than the SA.", func(p *Port) uint64 { return p.SA.Datagrams }, atPort...),
	counter("mad_send_errors_total", "Packets that the transport refused.", func(p *Port) uint64 { return p.SA.SendErrors }, atPort...),
	counter("mad_receive_errors_total", "Passing faults of receive.", func(p *Port) uint64 { return p.SA.RecvErrors }, atPort...),
	counter("port_suspicions_total", "Times that unanswered traffic made the service look at the port again.", func(p *Port) uint64 { return p.SA.Suspects }, atPort...),
}

var acmMetrics = []family[acmp.Stats]{
	counter("acm_lookups_total", "Addresses asked for by multicast.", func(s *acmp.Stats) uint64 { return s.Lookups }),
	counter("acm_requests_sent_total", "Multicast requests sent, retries included.", func(s *acmp.Stats) uint64 { return s.Requests }),
	counter("acm_responses_received_total", "Answers of other nodes.", func(s *acmp.Stats) uint64 { return s.Responses }),
	counter("acm_found_total", "Addresses found by answer or by overhearing.", func(s *acmp.Stats) uint64 { return s.Found }),
	counter("acm_timeouts_total", "Addresses that nobody answered for.", func(s *acmp.Stats) uint64 { return s.Timeouts }),
	counter("acm_overload_total", "Addresses not asked for because too many are under way.", func(s *acmp.Stats) uint64 { return s.Overload }),
	counter("acm_requests_received_total", "Requests of other nodes.", func(s *acmp.Stats) uint64 { return s.Heard }),
	counter("acm_responses_sent_total", "Answers to other nodes.", func(s *acmp.Stats) uint64 { return s.Answered }),
	counter("acm_joins_total", "Joins of multicast groups sent to the SA.", func(s *acmp.Stats) uint64 { return s.Joins }),
	counter("acm_join_failures_total", "Joins that did not work.", func(s *acmp.Stats) uint64 { return s.JoinErrors }),
	counter("acm_conflicts_total", "Datagrams that showed an address to be claimed by two nodes.", func(s *acmp.Stats) uint64 { return s.Conflicts }),
}

var acmRefused = desc("acm_refused_total", "Received ACM packets that led to nothing, by reason.", "reason")

var (
	saResponses = desc("sa_responses_total", "Packets of the SA that answer a query, by what they say.", "device", "port", "status")
	madDropped  = desc("mad_dropped_total", "Received packets that led to nothing, by reason.", "device", "port", "reason")
)

func responsesOf(p *Port) []Count {
	return []Count{
		{[]string{"ok"}, p.SA.OK}, {[]string{"no_records"}, p.SA.NoRecords}, {[]string{"error"}, p.SA.Errors},
		{[]string{"busy"}, p.SA.Busy}, {[]string{"no_sa"}, p.SA.NoSA},
	}
}

func droppedOf(p *Port) []Count {
	return []Count{
		{[]string{"mismatched"}, p.SA.Mismatched}, {[]string{"stray"}, p.SA.Stray},
		{[]string{"malformed"}, p.SA.Malformed}, {[]string{"unhandled"}, p.SA.Unhandled},
		{[]string{"foreign_report"}, p.SA.ReportsForeign}, {[]string{"report_rate"}, p.SA.ReportsOver},
	}
}

var neighMetrics = []family[neigh.Stats]{
	gauge("neigh_lookups_pending", "Addresses that the kernel is asked for now.", func(s *neigh.Stats) int64 { return int64(s.Pending) }),
	counter("neigh_lookups_total", "Addresses looked up in the kernel's neighbour table.", func(s *neigh.Stats) uint64 { return s.Lookups }),
	counter("neigh_known_total", "Addresses that the table had.", func(s *neigh.Stats) uint64 { return s.Known }),
	counter("neigh_asked_total", "Times that the kernel was made to ask.", func(s *neigh.Stats) uint64 { return s.Asked }),
	counter("neigh_found_total", "Addresses found.", func(s *neigh.Stats) uint64 { return s.Found }),
	counter("neigh_timeouts_total", "Addresses that nobody answered for.", func(s *neigh.Stats) uint64 { return s.Timeouts }),
	counter("neigh_unknown_total", "Addresses of what is no neighbour.", func(s *neigh.Stats) uint64 { return s.Unknown }),
	counter("neigh_overload_total", "Addresses not looked up because too many are under way.", func(s *neigh.Stats) uint64 { return s.Overload }),
	counter("neigh_moved_total", "Addresses that turned out to be elsewhere.", func(s *neigh.Stats) uint64 { return s.Moved }),
	gauge("neigh_remembered", "Answers remembered, to drop paths when they change.", func(s *neigh.Stats) int64 { return int64(s.Told) }),
	counter("neigh_forgotten_total", "Of them, those that made room for others.", func(s *neigh.Stats) uint64 { return s.Forgot }),
	counter("neigh_overruns_total", "Times that the kernel's notifications were lost.", func(s *neigh.Stats) uint64 { return s.Overruns }),
}

var hostMetrics = []family[hostnet.Stats]{
	gauge("host_watched", "1 while the kernel tells of changes of links, addresses and routes; else they are polled.", func(s *hostnet.Stats) int64 {
		if s.Watching {
			return 1
		}
		return 0
	}),
	counter("host_looks_total", "Times that links, addresses and routes were read.", func(s *hostnet.Stats) uint64 { return s.Looks }),
	counter("host_events_total", "Notifications of the kernel about them.", func(s *hostnet.Stats) uint64 { return s.Events }),
	counter("host_overruns_total", "Times that notifications were lost, and everything was read again.", func(s *hostnet.Stats) uint64 { return s.Overruns }),
}

var eventSource = desc("device_event_source_info", "What tells of a device's changes; with source poll it is looked at. Always 1.", "device", "source")

var eventMetrics = []family[transport.EventSource]{
	counter("device_events_total", "Events told of a device and its ports.", func(e *transport.EventSource) uint64 { return e.Events }, "device"),
	counter("device_events_lost_total", "Of them, those that nobody took in time; a look at the device makes up for them.", func(e *transport.EventSource) uint64 { return e.Lost }, "device"),
}

var queueMetrics = []family[verbs.Stats]{
	counter("queue_pair_received_total", "Datagrams received on queue pairs of our own.", func(s *verbs.Stats) uint64 { return s.Received }, atPort...),
	counter("queue_pair_sent_total", "Datagrams sent on them.", func(s *verbs.Stats) uint64 { return s.Sent }, atPort...),
	counter("queue_pair_foreign_total", "Datagrams of another class, dropped.", func(s *verbs.Stats) uint64 { return s.Foreign }, atPort...),
	counter("queue_pair_receive_errors_total", "Receive buffers that came back with an error.", func(s *verbs.Stats) uint64 { return s.RecvErrors }, atPort...),
	counter("queue_pair_send_errors_total", "Sends that came back with an error.", func(s *verbs.Stats) uint64 { return s.SendErrors }, atPort...),
	counter("queue_pair_stale_completions_total", "Completions from before a reset.", func(s *verbs.Stats) uint64 { return s.Stale }, atPort...),
	counter("queue_pair_resets_total", "Queue pairs taken out of an error state.", func(s *verbs.Stats) uint64 { return s.Resets }, atPort...),
	counter("queue_pair_full_total", "Sends refused as the queue stayed full.", func(s *verbs.Stats) uint64 { return s.Full }, atPort...),
	counter("queue_pair_capped_total", "Times that so many datagrams came at once that the rest was put off.", func(s *verbs.Stats) uint64 { return s.Capped }, atPort...),
}

var netlinkMetrics = []family[Netlink]{
	gauge("netlink_pending_requests", "Requests of the kernel that wait for a lookup now.", func(n *Netlink) int64 { return n.Pending }),
	counter("netlink_overruns_total", "Times that the kernel dropped messages to us.", func(n *Netlink) uint64 { return n.Overruns }),
}

var (
	netlinkUnanswered = desc("netlink_unanswered_total", "Requests of the kernel that got no answer, by reason.", "reason")
	netlinkIgnored    = desc("netlink_ignored_total", "Messages on the kernel's socket that are no request, by reason.", "reason")
)

var (
	fastPathState  = desc("fast_path_state", "1 for the state that the fast path is in.", "state")
	fastPathReason = desc("fast_path_failed_info", "Why the kernel answers nothing though it should; always 1.", "reason")
)

var fastPathMetrics = []family[FastPath]{
	gauge("fast_path_paths", "Answers that the kernel has.", func(f *FastPath) int64 { return f.Paths }),
	counter("fast_path_puts_total", "Answers given to the kernel.", func(f *FastPath) uint64 { return f.Puts }),
	counter("fast_path_deletes_total", "Answers taken from the kernel.", func(f *FastPath) uint64 { return f.Deletes }),
	counter("fast_path_full_total", "Answers that found no room in the kernel.", func(f *FastPath) uint64 { return f.Full }),
	counter("fast_path_lost_total", "Answers that the kernel did not take.", func(f *FastPath) uint64 { return f.Lost }),
	counter("fast_path_sockets_total", "Clients' sockets put on the fast path.", func(f *FastPath) uint64 { return f.Inserted }),
	counter("fast_path_sockets_refused_total", "Clients' sockets that stayed with the daemon.", func(f *FastPath) uint64 { return f.Refused }),
	counter("fast_path_refreshes_total", "Lookups behind a hit in the kernel.", func(f *FastPath) uint64 { return f.Refreshed }),
}

func collectFastPath(ch chan<- prometheus.Metric, f *FastPath) {
	for _, state := range FastPathStates {
		send(ch, fastPathState, prometheus.GaugeValue, truth(state == f.State), state)
	}
	if f.Reason != "" {
		send(ch, fastPathReason, prometheus.GaugeValue, 1, f.Reason)
	}
	emit(ch, fastPathMetrics, f)
}

func collectNetlink(ch chan<- prometheus.Metric, n *Netlink) {
	if n == nil {
		return
	}
	emit(ch, netlinkMetrics, n)
	counts(ch, netlinkUnanswered, n.Unanswered)
	counts(ch, netlinkIgnored, n.Ignored)
}
