//! Renewal of a secret without a restart: if the last provider of a request refuses the secret, the request waits until
//! Tollgate has read the secret again, and is sent again with it.

use super::job::RequestJob;
use crate::gateway::cx::Cx;
use crate::policy::config::Origin;
use std::sync::Arc;

impl RequestJob {
    /// Origin of the present target's secret.
    pub(super) fn origin(&self) -> Option<&Origin> {
        let (_, target, provider) = self.route()?;
        Some(provider.credentials.get(target.credential)?.secret.origin())
    }

    /// The secret that the attempt is sent has been replaced by another one.
    pub(super) fn has_newer_secret(&self, cx: &Cx) -> bool {
        let (own, present) = (&self.request.setup, &cx.setup);
        if Arc::ptr_eq(own, present) {
            return false;
        }
        let Some((_, target, provider)) = self.route() else { return false };
        let used = provider.credentials.get(target.credential);
        let known = present.config.providers.iter().find(|one| one.name == provider.name);
        let fresh = known.and_then(|one| one.credentials.get(target.credential));
        used.zip(fresh).is_some_and(|(used, fresh)| used.secret.expose() != fresh.secret.expose())
    }

    /// Continues with the present configuration, if it differs for this request only in the secret of the present
    /// target.
    pub(super) fn adopt_secret(&mut self, cx: &Cx) -> bool {
        let (own, present, model) = (&self.request.setup, &cx.setup, self.request.model());
        // Configurations of the same number differ only in secrets and lists of models, which may shift the model.
        let index = self.request.asked.map_or(usize::MAX, |asked| asked.model as usize);
        let there = present.config.catalog.get(index).map(|one| &one.id);
        let is_there = there.is_some() && there == model.map(|model| &model.id);
        let adopts = own.epoch == present.epoch && is_there && self.has_newer_secret(cx);
        if adopts {
            self.request.setup = present.clone();
        }
        adopts
    }
}
