// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * softib: /sys/kernel/debug/softib. control takes one command a line:
 *
 *   link NODE/PORT up|down		lid NODE/PORT LID [LMC]
 *   smlid NODE/PORT LID		event NODE/PORT NUMBER
 *   state NODE/PORT NUMBER		rereg NODE/PORT
 *   drop|delay|dup KEY=VALUE...	clear
 *   path FROM/PORT TO/PORT [TIMEOUT_MS]
 *   unplug NODE			plug NODE
 *   note TEXT
 *
 * state shows the ports and rules, trace the last packets and events.
 */
#include <linux/ctype.h>
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include "softib.h"

enum { DROP, DELAY, DUP };
static const char * const rule_name[] = { "drop", "delay", "dup" };

struct rule {
	struct list_head list;
	int what;
	int class, method, attr, qp, dlid, slid;	/* -1: any */
	struct sib_node *from;
	int count;			/* left; -1: for ever */
	int skip;			/* let that many pass first */
	unsigned int ms;
	unsigned int hits;
};
static LIST_HEAD(rules);

#define TRACE 2048
static struct line {
	u64 ns;
	char text[200];
} *ring;
static u64 ring_next;
static u64 trace_from;
static struct dentry *dir;
static struct ib_sa_client sa_client;
static DEFINE_MUTEX(ctl_mutex);		/* one command at a time */

/* --- trace (sib.lock held) ------------------------------------------------ */

static char *sib_line(void)
{
	struct line *l = &ring[ring_next++ % TRACE];

	l->ns = ktime_get_boottime_ns();
	return l->text;
}

void sib_note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sib_line(), sizeof(ring->text), fmt, ap);
	va_end(ap);
}

void sib_trace(struct sib_pkt *pkt, const char *verdict, struct sib_port *p)
{
	const struct ib_mad_hdr *h = (void *)pkt->data;
	char *t = sib_line();
	int n;

	n = scnprintf(t, sizeof(ring->text), "%s/%u > ", pkt->src->node->name, pkt->src->num);
	if (p)
		n += scnprintf(t + n, sizeof(ring->text) - n, "%s/%u ", p->node->name, p->num);
	n += scnprintf(t + n, sizeof(ring->text) - n, "LID %#x>%#x QP %#x>%#x SL %u%s %d bytes ",
		       pkt->slid, pkt->dlid, pkt->sqp, pkt->dqp, pkt->sl, pkt->grh_present ? " GRH" : "", pkt->len);
	if ((pkt->dqp < 2 || pkt->dqp == 0xffffff) && pkt->len == 256)
		n += scnprintf(t + n, sizeof(ring->text) - n,
			       "class %#x method %#x attr %#x mod %#x status %#x tid %016llx ",
			       h->mgmt_class, h->method, be16_to_cpu(h->attr_id), be32_to_cpu(h->attr_mod),
			       be16_to_cpu(h->status), be64_to_cpu(h->tid));
	scnprintf(t + n, sizeof(ring->text) - n, "%s", verdict);
}

static int trace_show(struct seq_file *m, void *v)
{
	struct line l;
	unsigned long flags;
	u64 i, end;

	spin_lock_irqsave(&sib.lock, flags);
	end = ring_next;
	i = max(trace_from, end > TRACE ? end - TRACE : 0);
	spin_unlock_irqrestore(&sib.lock, flags);
	for (; i < end; i++) {
		spin_lock_irqsave(&sib.lock, flags);
		l = ring[i % TRACE];
		spin_unlock_irqrestore(&sib.lock, flags);
		seq_printf(m, "%llu.%06llu %s\n", l.ns / NSEC_PER_SEC, l.ns % NSEC_PER_SEC / 1000, l.text);
	}
	return 0;
}

/* any write empties it */
static ssize_t trace_write(struct file *f, const char __user *b, size_t n, loff_t *o)
{
	unsigned long flags;

	spin_lock_irqsave(&sib.lock, flags);
	trace_from = ring_next;
	spin_unlock_irqrestore(&sib.lock, flags);
	return n;
}

static int trace_open(struct inode *i, struct file *f)
{
	return single_open_size(f, trace_show, NULL, 512 * 1024);
}

static const struct file_operations trace_fops = {
	.owner = THIS_MODULE, .open = trace_open, .read = seq_read, .llseek = seq_lseek,
	.release = single_release, .write = trace_write,
};

/* --- state ------------------------------------------------------------------ */

static int state_show(struct seq_file *m, void *v)
{
	static const char * const st[] = { "NOP", "DOWN", "INIT", "ARMED", "ACTIVE" };
	unsigned long flags;
	struct rule *r;
	int i, j;

	spin_lock_irqsave(&sib.lock, flags);
	for (i = 0; i < sib.nnodes; i++)
		for (j = sib.node[i]->sw ? 0 : 1; j <= sib.node[i]->nports; j++) {
			struct sib_port *p = &sib.node[i]->port[j];

			if (j && !p->peer)
				continue;
			seq_printf(m, "%s/%d guid %016llx %s phys %d", p->node->name, j, be64_to_cpu(p->guids[0]),
				   st[min(sib_state(p), 4)], p->pi.portphysstate_linkdown >> 4);
			if (!p->node->sw || !j)
				seq_printf(m, " lid %#x lmc %d smlid %#x cap %#x", sib_lid(p), sib_lmc(p),
					   be16_to_cpu(p->pi.sm_lid), be32_to_cpu(p->pi.cap_mask));
			if (p->peer)
				seq_printf(m, " peer %s/%u", p->peer->node->name, p->peer->num);
			seq_puts(m, p->down ? " link down\n" : "\n");
		}
	list_for_each_entry(r, &rules, list)
		seq_printf(m, "rule %s class %#x method %#x attr %#x qp %d slid %#x dlid %#x from %s ms %u left %d skip %d hits %u\n",
			   rule_name[r->what], r->class, r->method, r->attr, r->qp, r->slid, r->dlid,
			   r->from ? r->from->name : "any", r->ms, r->count, r->skip, r->hits);
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(state);

/* --- rules -------------------------------------------------------------------- */

/* sib.lock held */
bool sib_rules(struct sib_pkt *pkt)
{
	const struct ib_mad_hdr *h = (void *)pkt->data;
	bool mad = pkt->dqp < 2 && pkt->len == 256;
	struct sib_pkt *c;
	struct rule *r;

	list_for_each_entry(r, &rules, list) {
		if (!r->count ||
		    (r->class >= 0 && (!mad || h->mgmt_class != r->class)) ||
		    (r->method >= 0 && (!mad || h->method != r->method)) ||
		    (r->attr >= 0 && (!mad || be16_to_cpu(h->attr_id) != r->attr)) ||
		    (r->qp >= 0 && pkt->dqp != r->qp) ||
		    (r->dlid >= 0 && pkt->dlid != r->dlid) ||
		    (r->slid >= 0 && pkt->slid != r->slid) ||
		    (r->from && pkt->src->node != r->from))
			continue;
		if (r->skip) {
			r->skip--;
			continue;
		}
		if (r->count > 0)
			r->count--;
		r->hits++;
		switch (r->what) {
		case DROP:
			return false;
		case DELAY:
			pkt->due = jiffies + msecs_to_jiffies(r->ms);
			break;
		case DUP:
			c = kmemdup(pkt, sizeof(*pkt) + pkt->len, GFP_ATOMIC);
			if (!c)
				break;
			c->ruled = true;
			c->due = jiffies + msecs_to_jiffies(r->ms);
			sib_pkt_queue(c);
			break;
		}
		return true;
	}
	return true;
}

static void rules_clear(void)
{
	struct rule *r, *tmp;

	list_for_each_entry_safe(r, tmp, &rules, list) {
		list_del(&r->list);
		kfree(r);
	}
}

static struct sib_node *find_node(const char *name)
{
	int i;

	for (i = 0; i < sib.nnodes; i++)
		if (!strcmp(sib.node[i]->name, name))
			return sib.node[i];
	return NULL;
}

static struct sib_port *find_port(char *s)
{
	char *slash = s ? strchr(s, '/') : NULL;
	struct sib_node *n;
	unsigned int num = 1;

	if (!s)
		return NULL;
	if (slash) {
		*slash = 0;
		if (kstrtouint(slash + 1, 0, &num))
			return NULL;
	}
	n = find_node(s);
	if (!n || num > n->nports || (!num && !n->sw))
		return NULL;
	return &n->port[num];
}

static int add_rule(int what, char **word, int n)
{
	struct rule *r = kmalloc(sizeof(*r), GFP_KERNEL);
	unsigned long flags;
	int i;

	if (!r)
		return -ENOMEM;
	*r = (struct rule){ .what = what, .class = -1, .method = -1, .attr = -1, .qp = -1,
			    .dlid = -1, .slid = -1, .count = -1 };
	for (i = 0; i < n; i++) {
		char *v = strchr(word[i], '=');
		int x = 0;

		if (!v)
			goto bad;
		*v++ = 0;
		if (!strcmp(word[i], "from")) {
			r->from = find_node(v);
			if (!r->from)
				goto bad;
			continue;
		}
		if (kstrtoint(v, 0, &x))
			goto bad;
		if (!strcmp(word[i], "class")) r->class = x;
		else if (!strcmp(word[i], "method")) r->method = x;
		else if (!strcmp(word[i], "attr")) r->attr = x;
		else if (!strcmp(word[i], "qp")) r->qp = x;
		else if (!strcmp(word[i], "dlid")) r->dlid = x;
		else if (!strcmp(word[i], "slid")) r->slid = x;
		else if (!strcmp(word[i], "count")) r->count = x;
		else if (!strcmp(word[i], "skip")) r->skip = x;
		else if (!strcmp(word[i], "ms")) r->ms = x;
		else goto bad;
	}
	spin_lock_irqsave(&sib.lock, flags);
	list_add_tail(&r->list, &rules);
	spin_unlock_irqrestore(&sib.lock, flags);
	return 0;
bad:
	kfree(r);
	return -EINVAL;
}

/* --- a path query by an in-kernel consumer ------------------------------------- */

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)	/* 6.1: int, 6.12: unsigned */
typedef unsigned int num_t;
#else
typedef int num_t;
#endif

static void path_done(int status, struct sa_path_rec *rec, num_t num, void *ctx)
{
	unsigned long flags;

	spin_lock_irqsave(&sib.lock, flags);
	if (rec)
		sib_note("path query: status %d paths %d slid %#x dlid %#x sl %u mtu %u rate %u pkey %#x hop_limit %u",
			 status, (int)num, be32_to_cpu(sa_path_get_slid(rec)), be32_to_cpu(sa_path_get_dlid(rec)),
			 rec->sl, rec->mtu, rec->rate, be16_to_cpu(rec->pkey), rec->hop_limit);
	else
		sib_note("path query: status %d", status);
	spin_unlock_irqrestore(&sib.lock, flags);
}

static int path_query(struct sib_port *from, struct sib_port *to, unsigned int ms)
{
	struct sa_path_rec rec = { .rec_type = SA_PATH_REC_TYPE_IB };
	struct ib_sa_query *q;
	int r;

	if (from->node->sw || !from->node->dev)
		return -EINVAL;
	rec.sgid.global.subnet_prefix = from->pi.gid_prefix;
	rec.sgid.global.interface_id = from->guids[0];
	rec.dgid.global.subnet_prefix = to->pi.gid_prefix;
	rec.dgid.global.interface_id = to->guids[0];
	rec.pkey = cpu_to_be16(0xffff);
	rec.numb_path = 1;
	rec.reversible = 1;
	r = ib_sa_path_rec_get(&sa_client, &from->node->dev->ib, from->num, &rec,
			       IB_SA_PATH_REC_DGID | IB_SA_PATH_REC_SGID | IB_SA_PATH_REC_PKEY |
			       IB_SA_PATH_REC_NUMB_PATH | IB_SA_PATH_REC_REVERSIBLE,
			       ms, GFP_KERNEL, path_done, NULL, &q);
	return r < 0 ? r : 0;
}

static int command(char *line)
{
	char *word[16], *w;
	unsigned long flags;
	struct sib_port *p, *to;
	int n = 0, i, err = 0;
	unsigned int x = 0, y = 0;

	if (!strncmp(line, "note ", 5)) {
		spin_lock_irqsave(&sib.lock, flags);
		sib_note("%s", line + 5);
		spin_unlock_irqrestore(&sib.lock, flags);
		return 0;
	}
	while ((w = strsep(&line, " \t")))
		if (*w && n < ARRAY_SIZE(word))
			word[n++] = w;
	if (!n)
		return 0;
	for (i = DROP; i <= DUP; i++)
		if (!strcmp(word[0], rule_name[i]))
			return add_rule(i, word + 1, n - 1);
	if (!strcmp(word[0], "clear")) {
		spin_lock_irqsave(&sib.lock, flags);
		rules_clear();
		spin_unlock_irqrestore(&sib.lock, flags);
		return 0;
	}
	p = n > 1 ? find_port(word[1]) : NULL;
	if (!p)
		return -EINVAL;
	if (!strcmp(word[0], "unplug"))
		return sib_unplug(p->node);
	if (!strcmp(word[0], "plug"))
		return sib_plug(p->node);
	if (!strcmp(word[0], "path")) {
		to = n > 2 ? find_port(word[2]) : NULL;
		x = 1000;
		if (!to || (n > 3 && kstrtouint(word[3], 0, &x)))
			return -EINVAL;
		return path_query(p, to, x);
	}
	if (n > 2 && strcmp(word[0], "link") && kstrtouint(word[2], 0, &x))
		return -EINVAL;
	if (n > 3 && kstrtouint(word[3], 0, &y))
		return -EINVAL;
	spin_lock_irqsave(&sib.lock, flags);
	if (!strcmp(word[0], "link") && n == 3 && (!strcmp(word[2], "up") || !strcmp(word[2], "down"))) {
		p->down = word[2][0] == 'd';
		sib_link_update(p);
	} else if (!strcmp(word[0], "lid") && n >= 3 && x < 0xc000 && y < 8) {
		sib_set_lid(p, x, y);
	} else if (!strcmp(word[0], "smlid") && n == 3 && x < 0xc000) {
		p->pi.sm_lid = cpu_to_be16(x);
		sib_event(p, IB_EVENT_SM_CHANGE);
	} else if (!strcmp(word[0], "event") && n == 3) {
		sib_event(p, x);
	} else if (!strcmp(word[0], "state") && n == 3 && x >= IB_PORT_INIT && x <= IB_PORT_ACTIVE) {
		sib_set_state(p, x);
	} else if (!strcmp(word[0], "rereg")) {
		sib_event(p, IB_EVENT_CLIENT_REREGISTER);
	} else {
		err = -EINVAL;
	}
	spin_unlock_irqrestore(&sib.lock, flags);
	return err;
}

static ssize_t control_write(struct file *f, const char __user *b, size_t n, loff_t *o)
{
	char *buf, *s, *line;
	int err = 0;

	if (n > 4096)
		return -EINVAL;
	buf = memdup_user_nul(b, n);
	if (IS_ERR(buf))
		return PTR_ERR(buf);
	s = buf;
	mutex_lock(&ctl_mutex);
	while (!err && (line = strsep(&s, "\n")))
		err = command(line);
	mutex_unlock(&ctl_mutex);
	kfree(buf);
	return err ? err : n;
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE, .write = control_write,
};

int sib_ctl_init(void)
{
	ring = kvcalloc(TRACE, sizeof(*ring), GFP_KERNEL);
	if (!ring)
		return -ENOMEM;
	ib_sa_register_client(&sa_client);
	dir = debugfs_create_dir("softib", NULL);
	debugfs_create_file("control", 0200, dir, NULL, &control_fops);
	debugfs_create_file("state", 0400, dir, NULL, &state_fops);
	debugfs_create_file("trace", 0600, dir, NULL, &trace_fops);
	return 0;
}

void sib_ctl_exit(void)
{
	debugfs_remove_recursive(dir);
	ib_sa_unregister_client(&sa_client);
	rules_clear();
	kvfree(ring);
}
