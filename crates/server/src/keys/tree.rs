//! The tree of prefixes, made from samples of items and of requests.
//!
//! If all keys have different prefixes, sums for all prefixes at once would take much memory.
//! Sorting the samples by prefix brings the samples of each prefix together. So only the sums of
//! the prefixes of one sample are needed at a time.

use super::hot::{RequestKind, RequestSample};
use super::item_sampling::ItemSample;
use super::prefix::Prefixes;
use super::window::Window;

/// The largest number of prefixes in a tree.
const NODES: usize = 400;
/// The least number of samples of a prefix in a tree. With fewer, the error exceeds the estimate.
const LEAST: u32 = 4;

/// Sums over samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// Number of sampled items.
    pub(super) items: u32,
    pub(super) bytes: f64,
    /// The sum of the squares of the items' sizes.
    pub(super) bytes_squared: f64,
    /// Number of sampled items that expire. `ttl` is the sum of their times to live, in seconds.
    pub(super) expiring: u32,
    pub(super) ttl: f64,
    /// Number of sampled requests.
    pub(super) requests: u32,
    /// The weights of the sampled requests of each kind, summed: `hits`, `misses`, `untold` and
    /// `writes`.
    pub(super) hits: f64,
    pub(super) misses: f64,
    /// The sum for reads whose replies do not tell whether an item was found.
    pub(super) untold: f64,
    pub(super) writes: f64,
    pub(super) weights_squared: f64,
}

impl Sums {
    fn add_item(&mut self, item: ItemSample) {
        let bytes = f64::from(item.bytes);
        self.items += 1;
        self.bytes += bytes;
        self.bytes_squared += bytes * bytes;
        if let Some(ttl) = item.ttl {
            self.expiring += 1;
            self.ttl += f64::from(ttl);
        }
    }

    fn add_request(&mut self, request: RequestSample) {
        let weight = f64::from(request.weight);
        self.requests += 1;
        self.weights_squared += weight * weight;
        match request.kind {
            RequestKind::Hit => self.hits += weight,
            RequestKind::Miss => self.misses += weight,
            RequestKind::OutcomeUnknown => self.untold += weight,
            RequestKind::Write => self.writes += weight,
        }
    }

    fn subtract(&mut self, part: &Sums) {
        self.items -= part.items;
        self.bytes -= part.bytes;
        self.bytes_squared -= part.bytes_squared;
        self.expiring -= part.expiring;
        self.ttl -= part.ttl;
        self.requests -= part.requests;
        self.hits -= part.hits;
        self.misses -= part.misses;
        self.untold -= part.untold;
        self.writes -= part.writes;
        self.weights_squared -= part.weights_squared;
    }

    fn add(&mut self, sample: Sample) {
        match sample {
            Sample::Item(item) => self.add_item(item),
            Sample::Request(request) => self.add_request(request),
        }
    }

    fn samples(&self) -> u32 {
        self.items.max(self.requests)
    }
}

/// A prefix with the sums over its keys.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The whole prefix, including the delimiter at its end. Empty in the root, which stands for
    /// all keys.
    pub(super) prefix: Vec<u8>,
    pub(super) sums: Sums,
    /// The sums over the keys that belong to no child.
    pub(super) rest: Sums,
    pub(super) children: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
enum Sample {
    Item(ItemSample),
    Request(RequestSample),
}

/// `tree` sorts a vector with one element for each sample of items and of requests. With at most 32
/// bytes per element, the vector takes at most 1 MiB.
const _: () = assert!(size_of::<(&[u8], Sample)>() <= 32);

/// Makes the tree of the prefixes with the most samples. Its root stands for all keys.
pub(super) fn tree(
    prefixes: Prefixes,
    items: &mut Window<Option<ItemSample>>,
    requests: &mut Window<RequestSample>,
) -> Node {
    let mut samples = Vec::with_capacity(items.len() + requests.len());
    samples.extend(items.samples().filter_map(|(name, item)| Some((name, Sample::Item(item?)))));
    samples.extend(requests.samples().map(|(name, request)| (name, Sample::Request(request))));
    samples.sort_unstable_by_key(|(name, _)| *name);
    let mut all = Sums::default();
    samples.iter().for_each(|(_, sample)| all.add(*sample));
    let mut chosen = Chosen { all, prefixes: Vec::with_capacity(2 * NODES) };
    // The prefixes to which the previous sample belongs, the shortest first, with their sums so
    // far.
    let mut open: Vec<(&[u8], Sums)> = Vec::new();
    for (name, sample) in samples {
        while let Some((prefix, sums)) = open.pop_if(|(prefix, _)| !name.starts_with(prefix)) {
            chosen.add(prefix, sums);
        }
        let opened = open.last().map_or(0, |(prefix, _)| prefix.len());
        let ends = prefixes.ends(name).filter(|end| *end > opened);
        open.extend(ends.map(|end| (&name[..end], Sums::default())));
        open.iter_mut().for_each(|(_, sums)| sums.add(sample));
    }
    open.into_iter().for_each(|(prefix, sums)| chosen.add(prefix, sums));
    chosen.truncate();
    let mut chosen = chosen.prefixes;
    chosen.sort_unstable_by_key(|(name, _)| *name);
    let mut root = Node { prefix: Vec::new(), sums: all, rest: all, children: Vec::new() };
    root.take_children(&mut chosen.into_iter().peekable());
    root
}

/// The prefixes with the largest shares of the samples so far. Holds at most twice [`NODES`]
/// prefixes. When it is full, it sorts them and keeps half.
struct Chosen<'a> {
    all: Sums,
    prefixes: Vec<(&'a [u8], Sums)>,
}

impl<'a> Chosen<'a> {
    fn add(&mut self, prefix: &'a [u8], sums: Sums) {
        if sums.samples() >= LEAST {
            if self.prefixes.len() >= 2 * NODES {
                self.truncate();
            }
            self.prefixes.push((prefix, sums));
        }
    }

    /// Keeps only the [`NODES`] prefixes with the largest shares. A prefix has at least the share
    /// of any longer prefix that begins with it, and wins a tie. So every kept prefix has its
    /// parents in the tree.
    fn truncate(&mut self) {
        let share = |sums: &Sums| {
            f64::from(sums.items) / f64::from(self.all.items.max(1))
                + f64::from(sums.requests) / f64::from(self.all.requests.max(1))
        };
        self.prefixes.sort_unstable_by(|(one_name, one), (other_name, other)| {
            share(other).total_cmp(&share(one)).then_with(|| one_name.cmp(other_name))
        });
        self.prefixes.truncate(NODES);
    }
}

impl Node {
    /// Takes from `sorted` the prefixes that begin with this node's prefix, and adds them as
    /// descendants of this node. In `sorted`, a prefix comes directly before the longer prefixes
    /// that begin with it.
    fn take_children<'a>(
        &mut self,
        sorted: &mut std::iter::Peekable<impl Iterator<Item = (&'a [u8], Sums)>>,
    ) {
        while let Some((name, sums)) = sorted.next_if(|(name, _)| name.starts_with(&self.prefix)) {
            let mut child = Node { prefix: name.to_vec(), sums, rest: sums, children: Vec::new() };
            child.take_children(sorted);
            self.rest.subtract(&sums);
            self.children.push(child);
        }
        self.children.sort_by_key(|child| {
            (std::cmp::Reverse((child.sums.items, child.sums.requests)), child.prefix.clone())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_disk::Random;
    use std::collections::HashMap;

    const COLON: Prefixes = Prefixes { delimiter: b':' };

    fn build(items: &[(String, u32)], requests: &[&str]) -> Node {
        let (mut item_window, mut request_window) = (Window::new(0), Window::new(0));
        for (key, bytes) in items {
            let ttl = key.len().is_multiple_of(2).then_some(60);
            item_window.push(1, COLON.of(key.as_bytes()), Some(ItemSample { bytes: *bytes, ttl }));
            // Sampled items that have expired must not count in any prefix.
            item_window.push(1, &[], None);
        }
        for key in requests {
            let sample = RequestSample { weight: 16.0, kind: RequestKind::Hit };
            request_window.push(1, COLON.of(key.as_bytes()), sample);
        }
        tree(COLON, &mut item_window, &mut request_window)
    }

    fn count(node: &Node) -> usize {
        1 + node.children.iter().map(count).sum::<usize>()
    }

    fn check(node: &Node) {
        let items: u32 = node.children.iter().map(|child| child.sums.items).sum();
        let requests: u32 = node.children.iter().map(|child| child.sums.requests).sum();
        assert_eq!(node.sums.items, items + node.rest.items, "{node:?}");
        assert_eq!(node.sums.requests, requests + node.rest.requests, "{node:?}");
        for child in &node.children {
            let deeper = child.prefix.strip_prefix(&*node.prefix).unwrap();
            assert_eq!(deeper.iter().position(|byte| *byte == b':'), Some(deeper.len() - 1));
            check(child);
        }
    }

    #[test]
    fn a_tree_has_sums_of_items_and_requests() {
        let mut items: Vec<_> = (0..40).map(|at| (format!("user:{}:name", at % 4), 100)).collect();
        items.extend((0..10).map(|at| (format!("page{at}"), 1000)));
        items.extend((0..6).map(|at| (format!("a:b:c:d:e:{at}"), 10)));
        let tree =
            build(&items, &["user:1:x", "user:1:y", "user:1:z", "user:1:", "none:", "page1"]);
        check(&tree);
        assert_eq!((tree.sums.items, tree.sums.requests), (56, 6));
        assert_eq!(tree.sums.bytes, 40.0 * 100.0 + 10.0 * 1000.0 + 60.0);
        // `rest` must contain the keys without a prefix, and the keys of prefixes with few samples.
        assert_eq!((tree.rest.items, tree.rest.requests, tree.rest.bytes), (10, 2, 10_000.0));
        let names: Vec<_> = tree.children.iter().map(|child| &*child.prefix).collect();
        assert_eq!(names, [&b"user:"[..], b"a:"]);
        let user = &tree.children[0];
        assert_eq!((user.children.len(), user.sums.items), (4, 40));
        assert_eq!(user.sums.hits, 64.0);
        let one = user.children.iter().find(|child| child.prefix == b"user:1:").unwrap();
        assert_eq!((one.sums.items, one.sums.requests, one.sums.expiring), (10, 4, 0));
        assert_eq!(count(&tree.children[1]), 4);
    }

    #[test]
    fn the_number_of_prefixes_is_bounded() {
        let items: Vec<_> =
            (0..8000).map(|at| (format!("t{}:u{}:v:w:x", at % 40, at % 1000), 100)).collect();
        let tree = build(&items, &[]);
        check(&tree);
        assert_eq!((count(&tree), tree.children.len(), tree.sums.items), (NODES + 1, 40, 8000));
        let empty = build(&[], &[]);
        assert_eq!((count(&empty), empty.sums.samples()), (1, 0));
    }

    /// Returns the prefixes that the tree must contain. Unlike the tree, this function keeps the
    /// sums of all prefixes at the same time.
    fn largest(items: &[(String, u32)], requests: &[&str]) -> Vec<(Vec<u8>, u32, u32)> {
        let mut sums: HashMap<&[u8], Sums> = HashMap::new();
        for key in items.iter().map(|(key, _)| key.as_bytes()) {
            COLON.ends(key).for_each(|end| sums.entry(&key[..end]).or_default().items += 1);
        }
        for key in requests.iter().map(|key| key.as_bytes()) {
            COLON.ends(key).for_each(|end| sums.entry(&key[..end]).or_default().requests += 1);
        }
        let (items, requests) = (items.len().max(1) as f64, requests.len().max(1) as f64);
        let mut sums: Vec<_> =
            sums.into_iter().filter(|(_, sums)| sums.items.max(sums.requests) >= LEAST).collect();
        let share =
            |sums: &Sums| f64::from(sums.items) / items + f64::from(sums.requests) / requests;
        sums.sort_by(|(one_name, one), (other_name, other)| {
            share(other).total_cmp(&share(one)).then_with(|| one_name.cmp(other_name))
        });
        sums.truncate(NODES);
        sums.sort_by_key(|(name, _)| *name);
        sums.iter().map(|(name, sums)| (name.to_vec(), sums.items, sums.requests)).collect()
    }

    fn flatten(node: &Node, all: &mut Vec<(Vec<u8>, u32, u32)>) {
        for child in &node.children {
            all.push((child.prefix.clone(), child.sums.items, child.sums.requests));
            flatten(child, all);
        }
    }

    #[test]
    fn any_keys_give_the_largest_prefixes() {
        let mut random = Random::new(11);
        for most in [2, 5, 40] {
            let mut key = |_| -> String {
                let parts = random.below(7);
                let mut part = |_| {
                    let most = random.below(most) + 1;
                    format!("{}:", random.below(most))
                };
                (0..parts).map(&mut part).collect::<String>() + "x"
            };
            let items: Vec<_> = (0..8000).map(|at| (key(at), 10)).collect();
            let requests: Vec<_> = (0..5000).map(&mut key).collect();
            let requests: Vec<_> = requests.iter().map(String::as_str).collect();
            let tree = build(&items, &requests);
            check(&tree);
            let mut found = Vec::new();
            flatten(&tree, &mut found);
            found.sort();
            assert_eq!(found, largest(&items, &requests), "{most}");
        }
    }

    #[test]
    fn keys_without_common_prefixes_take_no_memory() {
        let mut random = Random::new(13);
        let mut key = |_| format!("{}:", random.below(u64::MAX)).repeat(4) + "x";
        let items: Vec<_> = (0..5000).map(|at| (key(at), 10)).collect();
        let keys: Vec<_> = (0..5000).map(&mut key).collect();
        let requests: Vec<_> = keys.iter().map(String::as_str).collect();
        let tree = build(&items, &requests);
        check(&tree);
        assert_eq!((count(&tree), tree.rest.items, tree.rest.requests), (1, 5000, 5000));
    }
}
