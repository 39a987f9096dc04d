//! Lists of models from providers. A helper thread requests them, and another one builds the catalog with new lists for
//! later requests. Running ones keep the configuration that they began with, and their model's number refers to its
//! catalog.

use crate::base::hash::mix_bytes;
use crate::base::limits::TOLD_BYTES_MAX;
use crate::base::text::push_number;
use crate::gateway::client::response::printable;
use crate::gateway::cx::{Cx, Setup};
use crate::gateway::orders::offload::{JobOwner, OffloadTask, OwnedIdentity, Product};
use crate::gateway::orders::{List, Listing, ListingAsked, NoList, Order};
use crate::gateway::provider::discovery::FreshList;
use crate::wire::json::write_string;
use std::sync::{Arc, Weak};

/// Requests the lists that are due. A process that is stopping requests none.
pub(crate) fn ask(cx: &mut Cx) {
    while let Some(provider) = cx.upstreams.discovery.take_due(cx.now.mono) {
        if !cx.lifecycle.is_stopping() {
            let (config, epoch) = (cx.setup.config.clone(), cx.setup.epoch);
            cx.commands.orders.push(Order::List(ListingAsked { config, epoch, provider }));
        }
    }
}

/// Handles an answer. Ignores an answer for an earlier configuration.
pub(crate) fn listed(listing: Listing, cx: &mut Cx) {
    let Listing { epoch, provider: index, list } = listing;
    let config = &cx.setup.config;
    let Some(provider) = config.provider(index).filter(|_| epoch == cx.setup.epoch) else { return };
    let (Some(discover), name) = (&provider.discover, provider.name.clone()) else { return };
    let again = cx.now.mono.after(discover.every);
    let origin = provider.credentials.first().map(|credential| credential.secret.origin().clone());
    let failed = list.as_ref().err().map(|no| no.why.clone());
    let news = cx.upstreams.discovery.answered(index, failed, again);
    match list {
        Ok(List { mut models, mut skipped }) => {
            let most = config.server.bounds.listed;
            if let Some(first) = models.get(most) {
                skipped.get_or_insert_with(|| (0, first.model.clone())).0 += models.len() - most;
                models.truncate(most);
            }
            let list = FreshList { provider: index, models, skipped };
            if provider.listed != list.models {
                cx.upstreams.discovery.keep(list);
                build(cx);
            } else {
                cx.upstreams.discovery.forget(index);
                if news {
                    log_list(&list, cx);
                }
            }
        }
        Err(NoList { why, refused }) => {
            if let Some(origin) = origin.filter(|_| refused) {
                cx.renew(&origin);
            }
            if news {
                cx.log_event(|out| {
                    opening(&name, b"failed\",\"error\":", out);
                    write_string(out, &why);
                });
            }
        }
    }
}

/// Has a helper thread build the catalog with the new lists, unless it is building one.
fn build(cx: &mut Cx) {
    let base = cx.setup.clone();
    // The account of memory has room for one catalog besides the present one. A first list adds to it.
    let is_former_used = cx.upstreams.discovery.former.strong_count() > 0;
    let mut lists = cx.upstreams.discovery.take_fresh();
    lists.retain(|list| {
        base.config.provider(list.provider).is_some_and(|provider| provider.listed.is_empty() || !is_former_used)
    });
    if !lists.is_empty() {
        let job = JobOwner::alone(None, cx.next_offload());
        cx.upstreams.discovery.building = Some(job.serial);
        cx.offload(job, 0, OwnedIdentity::default(), OffloadTask::Catalog { base, lists });
    }
}

/// A helper thread has built a catalog: uses it, or has it built again if the configuration has changed since.
pub(crate) fn built(product: Option<Product>, cx: &mut Cx) {
    cx.upstreams.discovery.building = None;
    match product {
        Some(Product::Catalog { base, built, lists }) if Arc::ptr_eq(&base, &cx.setup) => {
            if cx.upstreams.discovery.former.strong_count() == 0 {
                let former: Weak<Setup> = Arc::downgrade(&cx.setup);
                cx.upstreams.discovery.former = former;
            }
            // The configuration keeps its number: connections to providers stay usable.
            cx.setup = built;
            forget_targets(cx);
            lists.iter().for_each(|list| log_list(list, cx));
        }
        // A secret has been renewed.
        Some(Product::Catalog { base, lists, .. }) if base.epoch == cx.setup.epoch => {
            lists.into_iter().for_each(|list| cx.upstreams.discovery.put_back(list));
        }
        // The configuration has been read again, and the lists are requested again.
        Some(_) => {}
        None => cx.report.stats.panics += 1,
    }
    build(cx);
}

fn log_list(list: &FreshList, cx: &mut Cx) {
    let setup = cx.setup.clone();
    let Some(provider) = setup.config.provider(list.provider) else { return };
    let models = setup.config.discovered(list.provider) as u64;
    cx.log_event(|out| {
        opening(&provider.name, b"listed\",\"models\":", out);
        push_number(out, models);
        if let Some((count, first)) = &list.skipped {
            out.extend_from_slice(b",\"skipped\":");
            push_number(out, *count as u64);
            out.extend_from_slice(b",\"first_skipped\":");
            let first = printable(first.as_bytes(), TOLD_BYTES_MAX);
            write_string(out, &String::from_utf8_lossy(&first));
        }
    });
}

fn opening(provider: &str, outcome: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"event\":\"models\",\"provider\":");
    write_string(out, provider);
    out.extend_from_slice(b",\"outcome\":\"");
    out.extend_from_slice(outcome);
}

/// Forgets the state of targets that no longer exist, so that a provider that keeps renaming its models does not use
/// ever more memory.
fn forget_targets(cx: &mut Cx) {
    let catalog = &cx.setup.config.catalog;
    let targets = catalog.models().iter().flat_map(|model| &model.targets);
    let mut known: Vec<u64> = targets.map(|target| target.seed).collect();
    known.sort_unstable();
    cx.upstreams.breakers.forget(|label| known.binary_search(&mix_bytes(0, label.as_bytes())).is_ok());
}
