// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

package cache

// Put publishes the answer of a flight that took its epoch, since, before it
// asked. It reports false, and changes nothing, when something that concerns the
// answer was invalidated after that: the scope, the key, a GID or LID that key
// or record name, or everything. It also does when the key is not one of
// MakeKey's or the scope is not below MaxScopes. rec may be nil in a negative
// entry. A full shard evicts what was not used for longest.
func (c *Cache) Put(k *Key, rec *[64]byte, m Meta, since Epoch) bool {
	if !k.valid() || m.Scope >= MaxScopes || rec == nil && m.Status == 0 {
		c.refused.Add(1)
		return false
	}
	// An epoch from the future would outlive the invalidations until then.
	it := makeItem(k, rec, &m, min(since, c.Epoch()))
	h := c.hash.words(it.header(), &it.key)
	s := c.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.lastInvalidation(h, &it) > it.since {
		s.rejected++
		return false
	}
	s.puts++
	if slot, old := c.find(h, &it); slot != nil {
		// In another entry, so that readers of the old one are not disturbed;
		// what was used stays used.
		n := c.take(s)
		c.fill(s, n, &it, c.entries[old].used.Load())
		c.link(s, n, &it)
		slot.Store(c.makeSlot(h, n))
		var was item
		c.read(old, &was)
		c.unlink(s, old, &was)
		c.release(s, old)
		s.live.Add(1) // release took one off
		c.changed(&it, was.tag != it.tag || was.rec != it.rec)
		return true
	}
	if int(s.live.Load()) >= s.limit {
		c.evict(s)
	}
	slot := c.place(s, h)
	n := c.take(s)
	c.fill(s, n, &it, 0)
	c.link(s, n, &it)
	slot.Store(c.makeSlot(h, n))
	s.live.Add(1)
	c.changed(&it, false)
	return true
}
