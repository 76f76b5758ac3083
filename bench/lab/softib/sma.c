// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* softib: subnet management and performance management agents. */
#include <linux/slab.h>
#include "softib.h"

#define BAD_ATTR	cpu_to_be16(0x000c)	/* method and attribute not supported */
#define BAD_VALUE	cpu_to_be16(0x001c)

void sib_set_lid(struct sib_port *p, u16 lid, int lmc)
{
	bool changed = sib_lid(p) != lid || sib_lmc(p) != lmc;

	p->pi.lid = cpu_to_be16(lid);
	p->pi.mkeyprot_resv_lmc = (p->pi.mkeyprot_resv_lmc & 0xf8) | lmc;
	if (changed)
		sib_event(p, IB_EVENT_LID_CHANGE);
}

void sib_set_state(struct sib_port *p, int state)
{
	int old = sib_state(p);

	if (old == state)
		return;
	p->pi.linkspeed_portstate = (p->pi.linkspeed_portstate & 0xf0) | state;
	sib_note("%s/%u %s", p->node->name, p->num,
		 state == IB_PORT_ACTIVE ? "ACTIVE" : state == IB_PORT_ARMED ? "ARMED" : "INIT");
	if (state == IB_PORT_ACTIVE)
		sib_event(p, IB_EVENT_PORT_ACTIVE);
}

static __be16 set_port_info(struct sib_port *p, const struct ib_port_info *in)
{
	struct ib_port_info *pi = &p->pi;
	bool end = !p->node->sw || p->num == 0;
	int state = in->linkspeed_portstate & 0xf, phys = in->portphysstate_linkdown >> 4;
	u16 lid = be16_to_cpu(in->lid);
	bool sm_change, gid_change;

	if (end) {
		if (lid >= 0xc000 || be16_to_cpu(in->sm_lid) >= 0xc000)
			return BAD_VALUE;
		gid_change = pi->gid_prefix != in->gid_prefix;
		sm_change = pi->sm_lid != in->sm_lid ||
			((pi->neighbormtu_mastersmsl ^ in->neighbormtu_mastersmsl) & 0xf);
		pi->mkey = in->mkey;
		pi->gid_prefix = in->gid_prefix;
		pi->mkey_lease_period = in->mkey_lease_period;
		pi->mkeyprot_resv_lmc = (pi->mkeyprot_resv_lmc & 0x3f) | (in->mkeyprot_resv_lmc & 0xc0);
		pi->sm_lid = in->sm_lid;
		pi->neighbormtu_mastersmsl = (pi->neighbormtu_mastersmsl & 0xf0) | (in->neighbormtu_mastersmsl & 0xf);
		pi->clientrereg_resv_subnetto = in->clientrereg_resv_subnetto & 0x1f;
		pi->mkey_violations = in->mkey_violations;
		pi->pkey_violations = in->pkey_violations;
		pi->qkey_violations = in->qkey_violations;
		sib_set_lid(p, lid, p->node->sw ? 0 : in->mkeyprot_resv_lmc & 7);
		if (sm_change)
			sib_event(p, IB_EVENT_SM_CHANGE);
		if (gid_change)
			sib_event(p, IB_EVENT_GID_CHANGE);
		if (in->clientrereg_resv_subnetto & 0x80)
			sib_event(p, IB_EVENT_CLIENT_REREGISTER);
	}
	if (in->link_width_enabled && in->link_width_enabled != 0xff)
		pi->link_width_enabled = in->link_width_enabled;
	if ((in->linkspeedactive_enabled & 0xf) && (in->linkspeedactive_enabled & 0xf) != 0xf)
		pi->linkspeedactive_enabled = (pi->linkspeedactive_enabled & 0xf0) | (in->linkspeedactive_enabled & 0xf);
	if (in->portphysstate_linkdown & 0xf)
		pi->portphysstate_linkdown = (pi->portphysstate_linkdown & 0xf0) | (in->portphysstate_linkdown & 0xf);
	if (in->neighbormtu_mastersmsl >> 4)
		pi->neighbormtu_mastersmsl = (in->neighbormtu_mastersmsl & 0xf0) | (pi->neighbormtu_mastersmsl & 0xf);
	pi->vl_high_limit = in->vl_high_limit;
	pi->vlstallcnt_hoqlife = in->vlstallcnt_hoqlife;
	if (in->operationalvl_pei_peo_fpi_fpo >> 4)
		pi->operationalvl_pei_peo_fpi_fpo = in->operationalvl_pei_peo_fpi_fpo;
	pi->localphyerrors_overrunerrors = in->localphyerrors_overrunerrors;
	if (p->node->sw && p->num == 0)
		return 0;
	if (phys) {
		p->disabled = phys == 3;
		if (phys == 3 || (phys == 2 && state == IB_PORT_DOWN))
			sib_link_bounce(p);
		sib_link_update(p);
	} else if (state == IB_PORT_DOWN) {
		sib_link_bounce(p);
	}
	switch (state) {
	case IB_PORT_NOP:
	case IB_PORT_DOWN:
		break;
	case IB_PORT_ARMED:
		if (sib_state(p) != IB_PORT_INIT && sib_state(p) != IB_PORT_ARMED)
			return BAD_VALUE;
		sib_set_state(p, IB_PORT_ARMED);
		break;
	case IB_PORT_ACTIVE:
		if (sib_state(p) != IB_PORT_ARMED && sib_state(p) != IB_PORT_ACTIVE)
			return BAD_VALUE;
		sib_set_state(p, IB_PORT_ACTIVE);
		break;
	default:
		return BAD_VALUE;
	}
	return 0;
}

static void node_info(struct sib_node *n, struct sib_port *in, struct ib_node_info *ni)
{
	memset(ni, 0, 40);
	ni->base_version = 1;
	ni->class_version = 1;
	ni->node_type = n->sw ? 2 : 1;
	ni->num_ports = n->nports;
	ni->sys_guid = ni->node_guid = n->guid;
	ni->port_guid = n->sw ? n->guid : in->guids[0];
	ni->partition_cap = cpu_to_be16(SIB_PKEYS);
	ni->device_id = cpu_to_be16(n->sw ? 2 : 1);
	ni->revision = cpu_to_be32(1);
	ni->local_port_num = in->num;
	ni->vendor_id[0] = SIB_VENDOR >> 16;
	ni->vendor_id[1] = SIB_VENDOR >> 8 & 0xff;
	ni->vendor_id[2] = SIB_VENDOR & 0xff;
}

/*
 * Carries out one SMP, which becomes its own answer. False: none is to be
 * sent (and an HCA passes it up to whoever is registered, the SM).
 */
bool sib_smp(struct sib_node *n, struct sib_port *in, struct ib_smp *smp)
{
	bool set = smp->method == IB_MGMT_METHOD_SET;
	u32 mod = be32_to_cpu(smp->attr_mod);
	struct sib_port *p = NULL;
	unsigned int num, blk;
	__be16 status = 0;

	if (smp->method == IB_MGMT_METHOD_TRAP_REPRESS) {
		if (smp->tid == ((struct ib_smp *)sib_sm_port(in)->trap.mad)->tid)
			sib_sm_port(in)->trap.left = 0;
		return false;
	}
	if (smp->method != IB_MGMT_METHOD_GET && !set)
		return false;
	if (smp->attr_id == IB_SMP_ATTR_SM_INFO && !n->sw)
		return false;

	switch (smp->attr_id) {
	case IB_SMP_ATTR_NODE_DESC:
		memset(smp->data, 0, 64);
		if (n->dev)
			memcpy(smp->data, n->dev->ib.node_desc, 64);
		else
			snprintf(smp->data, 64, "softib switch %s", n->name);
		if (set)
			status = BAD_ATTR;
		break;
	case IB_SMP_ATTR_NODE_INFO:
		memset(smp->data, 0, 64);
		node_info(n, in, (void *)smp->data);
		if (set)
			status = BAD_ATTR;
		break;
	case IB_SMP_ATTR_SWITCH_INFO:
		if (!n->sw) {
			status = BAD_ATTR;
			break;
		}
		if (set) {
			memcpy(n->si + 6, smp->data + 6, 2);	/* LinearFDBTop */
			memcpy(n->si + 8, smp->data + 8, 3);
			n->si[11] = (smp->data[11] & 0xf8) | (smp->data[11] & 4 ? 0 : n->si[11] & 4);
			memcpy(n->si + 18, smp->data + 18, 2);	/* MulticastFDBTop */
		}
		memcpy(smp->data, n->si, 64);
		break;
	case IB_SMP_ATTR_PORT_INFO:
		num = mod & 0xff;
		if (!n->sw && !num)
			num = in->num;
		if (num > n->nports) {
			status = BAD_VALUE;
			break;
		}
		p = &n->port[num];
		if (set) {
			u8 rereg = smp->data[51] & 0x80;

			status = set_port_info(p, (void *)smp->data);
			memcpy(smp->data, &p->pi, sizeof(p->pi));
			smp->data[51] |= rereg;
		} else {
			memcpy(smp->data, &p->pi, sizeof(p->pi));
		}
		memset(smp->data + 60, 0, 4);
		smp->data[28] = in->num;
		break;
	case IB_SMP_ATTR_GUID_INFO:
		p = n->sw ? &n->port[0] : in;
		if (mod) {
			status = BAD_VALUE;
			break;
		}
		if (set) {
			memcpy(p->guids + 1, smp->data + 8, sizeof(p->guids) - 8);
			sib_event(p, IB_EVENT_GID_CHANGE);
		}
		memcpy(smp->data, p->guids, 64);
		break;
	case IB_SMP_ATTR_PKEY_TABLE:
		num = n->sw ? mod >> 16 : in->num;
		if (num > n->nports || (mod & 0xffff)) {
			status = BAD_VALUE;
			break;
		}
		p = &n->port[num];
		if (set && memcmp(p->pkeys, smp->data, 64)) {
			memcpy(p->pkeys, smp->data, 64);
			sib_event(p, IB_EVENT_PKEY_CHANGE);
		}
		memcpy(smp->data, p->pkeys, 64);
		break;
	case IB_SMP_ATTR_SL_TO_VL_TABLE:
		num = n->sw ? mod & 0xff : in->num;
		if (num > n->nports) {
			status = BAD_VALUE;
			break;
		}
		p = &n->port[num];
		if (set)
			memcpy(p->sl2vl, smp->data, 8);
		memset(smp->data, 0, 64);
		memcpy(smp->data, p->sl2vl, 8);
		break;
	case IB_SMP_ATTR_VL_ARB_TABLE:
		num = n->sw ? mod & 0xff : in->num;
		blk = mod >> 16;
		if (num > n->nports || blk < 1 || blk > 4) {
			status = BAD_VALUE;
			break;
		}
		p = &n->port[num];
		if (set)
			memcpy(p->vlarb[blk - 1], smp->data, 64);
		memcpy(smp->data, p->vlarb[blk - 1], 64);
		break;
	case IB_SMP_ATTR_LINEAR_FORWARD_TABLE:
		if (!n->sw || mod >= SIB_LFT / 64) {
			status = n->sw ? BAD_VALUE : BAD_ATTR;
			break;
		}
		if (set)
			memcpy(n->lft + mod * 64, smp->data, 64);
		memcpy(smp->data, n->lft + mod * 64, 64);
		break;
	case IB_SMP_ATTR_MCAST_FORWARD_TABLE: {
		unsigned int pos = mod >> 28, i;
		__be16 *d = (void *)smp->data;

		blk = mod & 0x1ff;
		if (!n->sw || blk >= SIB_MFT / 32) {
			status = n->sw ? BAD_VALUE : BAD_ATTR;
			break;
		}
		for (i = 0; i < 32; i++) {
			if (pos >= SIB_MFT_POS) {
				d[i] = 0;
				continue;
			}
			if (set)
				n->mft[blk * 32 + i][pos] = d[i];
			d[i] = n->mft[blk * 32 + i][pos];
		}
		break;
	}
	default:
		status = BAD_ATTR;
	}
	smp->method = IB_MGMT_METHOD_GET_RESP;
	smp->status = status;
	if (smp->mgmt_class == IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE)
		smp->status |= IB_SMP_DIRECTION;
	return true;
}

static void put32(u8 *d, u64 v)
{
	__be32 b = cpu_to_be32(min_t(u64, v, 0xffffffff));

	memcpy(d, &b, 4);
}

static void put64(u8 *d, u64 v)
{
	__be64 b = cpu_to_be64(v);

	memcpy(d, &b, 8);
}

bool sib_perf(struct sib_node *n, struct sib_port *in, u8 *mad)
{
	struct ib_mad_hdr *h = (void *)mad;
	u8 *d = mad + 64, sel = d[1];
	bool set = h->method == IB_MGMT_METHOD_SET;
	struct sib_port *p = in;

	if (h->method != IB_MGMT_METHOD_GET && !set)
		return false;
	h->method = IB_MGMT_METHOD_GET_RESP;
	h->status = 0;
	if (sel && sel <= n->nports)
		p = &n->port[sel];
	switch (be16_to_cpu(h->attr_id)) {
	case 0x0001:		/* ClassPortInfo */
		memset(d, 0, 72);
		d[0] = d[1] = 1;
		d[2] = 2;	/* extended counters */
		d[7] = 16;
		break;
	case 0x0012:		/* PortCounters */
		if (set) {
			p->downed = p->discards = p->vl15_dropped = 0;
			p->tx_pkts = p->tx_words = p->rx_pkts = p->rx_words = 0;
		}
		memset(d, 0, 40);
		d[1] = sel;
		d[7] = min(p->downed, 255U);
		d[14] = min(p->discards, 0xffffU) >> 8;
		d[15] = min(p->discards, 0xffffU);
		d[22] = min(p->vl15_dropped, 0xffffU) >> 8;
		d[23] = min(p->vl15_dropped, 0xffffU);
		put32(d + 24, p->tx_words);
		put32(d + 28, p->rx_words);
		put32(d + 32, p->tx_pkts);
		put32(d + 36, p->rx_pkts);
		break;
	case 0x001d:		/* PortCountersExtended */
		if (set)
			p->tx_pkts = p->tx_words = p->rx_pkts = p->rx_words = 0;
		memset(d, 0, 72);
		d[1] = sel;
		put64(d + 8, p->tx_words);
		put64(d + 16, p->rx_words);
		put64(d + 24, p->tx_pkts);
		put64(d + 32, p->rx_pkts);
		break;
	default:
		h->status = BAD_ATTR;
	}
	return true;
}
