//! The accounts of groups. A request counts in the group of its key at admission, and in all groups above it: its path.
//! Paths are identified by their text, as rows store it, and accounts by their names. So an account is the sum of the
//! rows whose path has its name, even if groups were moved since.

use super::account::MeterAccount;
use super::windows::{Open, PathIx};
use crate::base::limits::PATHS_MAX;
use crate::base::slots::Slots;
use crate::base::time::Unix;
use crate::policy::plan::{Group, PATH_SEPARATOR, Plan};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Group that is or was configured, or that rows name.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) account: MeterAccount,
    /// Limits of the group; none if it is not configured.
    pub(super) limits: Plan,
    /// Path of the keys in it; `NONE` if it is not configured.
    pub(super) path: PathIx,
}

/// A path.
#[derive(Debug)]
struct Path {
    text: Arc<str>,
    /// The groups on it, the nearest to the key first.
    groups: Box<[u32]>,
}

/// All groups and paths.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    by_name: HashMap<Arc<str>, u32, ahash::RandomState>,
    /// All paths. The first is that of no group.
    paths: Vec<Path>,
    by_text: HashMap<Arc<str>, PathIx, ahash::RandomState>,
}

impl Default for Tree {
    #[inline]
    fn default() -> Tree {
        // Filled only by the operator, so constant seeds are safe.
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let none = Path { text: "".into(), groups: Box::default() };
        Tree {
            nodes: Vec::new(),
            by_name: HashMap::with_hasher(hasher.clone()),
            paths: vec![none],
            by_text: HashMap::with_hasher(hasher),
        }
    }
}

impl Tree {
    /// Applies the configured groups. Returns false and changes nothing if there would be too many paths.
    #[inline]
    pub(super) fn configure(&mut self, groups: &[Group]) -> bool {
        let new = groups.iter().filter(|group| !self.by_text.contains_key(&group.path)).count();
        if self.paths.len() + new > PATHS_MAX {
            return false;
        }
        for node in self.nodes.iter_mut().filter(|node| node.path.is_some()) {
            node.path = PathIx::NONE;
            node.limits = Plan::unlimited(&node.limits.name);
        }
        for group in groups {
            let path = self.path(&group.path);
            if let Some(node) = self.paths[path.0 as usize].groups.first().map(|index| *index as usize) {
                let node = &mut self.nodes[node];
                (node.path, node.limits) = (path, group.limits.clone());
            }
        }
        true
    }

    /// All accounts, without an update.
    #[inline]
    pub(super) fn every(&mut self) -> impl Iterator<Item = &mut MeterAccount> {
        self.nodes.iter_mut().map(|node| &mut node.account)
    }

    /// Path of this text; that of no group if there are too many paths.
    #[inline]
    pub(super) fn path(&mut self, text: &str) -> PathIx {
        if text.is_empty() {
            return PathIx::NONE;
        }
        if let Some(known) = self.by_text.get(text) {
            return *known;
        }
        if self.paths.len() >= PATHS_MAX {
            return PathIx::NONE;
        }
        let mut groups: Vec<u32> = Vec::new();
        for name in text.rsplit(PATH_SEPARATOR) {
            let node = self.node(name);
            if !groups.contains(&node) {
                groups.push(node);
            }
        }
        let (path, text) = (PathIx(self.paths.len() as u32), Arc::<str>::from(text));
        self.paths.push(Path { text: text.clone(), groups: groups.into() });
        self.by_text.insert(text, path);
        path
    }

    #[inline]
    fn node(&mut self, name: &str) -> u32 {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let (index, limits) = (self.nodes.len() as u32, Plan::unlimited(name));
        self.by_name.insert(limits.name.clone(), index);
        self.nodes.push(Node { account: MeterAccount::default(), limits, path: PathIx::NONE });
        index
    }

    /// Path of the keys in the group of this name; `None` if the group is not configured.
    #[inline]
    pub(super) fn path_of(&self, name: &str) -> Option<PathIx> {
        let node = self.by_name.get(name).map(|index| &self.nodes[*index as usize]);
        node.map(|node| node.path).filter(|path| path.is_some())
    }

    /// Text of a path, as rows store it.
    #[inline]
    pub(super) fn text(&self, path: PathIx) -> Arc<str> {
        self.paths[path.0 as usize].text.clone()
    }

    /// Visits each group on the path, the nearest to the key first, updated to `now`.
    #[inline]
    pub(super) fn each(&mut self, path: PathIx, open: &Slots<Open>, now: Unix, mut see: impl FnMut(&mut Node)) {
        let Tree { nodes, paths, .. } = self;
        for index in &*paths[path.0 as usize].groups {
            let node = &mut nodes[*index as usize];
            node.enter(now, open, |open| paths[open.path.0 as usize].groups.contains(index));
            see(node);
        }
    }

    /// Visits each group on the path without an update.
    #[inline]
    pub(super) fn each_as_it_is(&mut self, path: PathIx, mut see: impl FnMut(&mut Node)) {
        for index in &*self.paths[path.0 as usize].groups {
            see(&mut self.nodes[*index as usize]);
        }
    }

    /// True if the limits of a group on the path are such ones.
    #[inline]
    pub(super) fn any(&self, path: PathIx, is_such: fn(&Plan) -> bool) -> bool {
        self.paths[path.0 as usize].groups.iter().any(|index| is_such(&self.nodes[*index as usize].limits))
    }

    /// Visits each configured group with a budget, updated to `now`.
    #[inline]
    pub(super) fn each_budget(&mut self, open: &Slots<Open>, now: Unix, mut see: impl FnMut(&mut Node)) {
        self.each_that(|node| node.limits.all.budgets().next().is_some(), open, now, &mut |node, _| see(node));
    }

    #[inline]
    pub(super) fn each_that(
        &mut self,
        is_asked: fn(&Node) -> bool,
        open: &Slots<Open>,
        now: Unix,
        see: &mut dyn FnMut(&mut Node, &str),
    ) {
        let Tree { nodes, paths, .. } = self;
        for (index, node) in nodes.iter_mut().enumerate().filter(|(_, node)| is_asked(node)) {
            let index = index as u32;
            node.enter(now, open, |open| paths[open.path.0 as usize].groups.contains(&index));
            let path = &*paths[node.path.0 as usize].text;
            see(node, path);
        }
    }
}

impl Node {
    /// Brings the account to `now`. `is_here` selects the reservations that count in it.
    #[inline]
    fn enter(&mut self, now: Unix, open: &Slots<Open>, is_here: impl Fn(&Open) -> bool) {
        self.account.enter(&self.limits.all, now, &|visit| {
            open.iter().map(|(_, open)| open).filter(|open| is_here(open)).for_each(visit)
        });
    }

    /// Limits of the group, or one host's share of them.
    #[inline]
    pub(super) fn share(&self, hosts: u32) -> Cow<'_, Plan> {
        if hosts > 1 { Cow::Owned(self.limits.share(hosts)) } else { Cow::Borrowed(&self.limits) }
    }
}
