//! The picture: callers above their callees, each as wide as its share of the bytes. One SVG
//! without anything outside it, light or dark as the reader's screen is.
//!
//! Stacks of asynchronous programs are mostly their runtime's. To show the program's own functions,
//! functions of one library that call each other are drawn as one, by the name of the last, and
//! those of the standard library only where a stack ends. Parts narrower than [`NARROWEST`] are not
//! drawn, stacks deeper than [`ROWS_MAX`] are cut there, and a note below reports both.

use std::collections::BTreeMap;

use dashboard::text::{short, signed};
use svg::{Anchor, Svg, XmlEscaped};

use crate::{
    command::By,
    names::{self, Owner},
    profile::{Profile, StackSample},
    table,
};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const HEAD: f64 = 74.0;
const ROW: f64 = 19.0;
const FOOT: f64 = 30.0;
/// Width of a letter of the small text, on average and a little more.
const LETTER: f64 = 6.4;
/// Narrower is not drawn.
const NARROWEST: f64 = 0.7;
/// Most functions of a stack that are drawn; a deeper stack is cut there and counted.
const ROWS_MAX: usize = 64;
/// Longest name in a title, which is shown when a part is pointed at.
const TITLE_CHARS_MAX: usize = 240;

const STYLE: &str = include_str!("flame.css");

/// A function in the picture, below those that called it.
struct Node {
    owner: Owner,
    value: i64,
    /// Functions that it called: their names and their indices in [`Tree::nodes`].
    called: BTreeMap<String, usize>,
}

struct Tree {
    /// The first is the root.
    nodes: Vec<Node>,
    /// Stacks that were cut.
    cut: usize,
}

impl Tree {
    fn from_profile(profile: &Profile, by: By) -> Self {
        let root = Node { owner: Owner::Allocator, value: 0, called: BTreeMap::new() };
        let mut tree = Self { nodes: vec![root], cut: 0 };
        let short: Vec<String> =
            profile.frames.iter().map(|frame| names::short(&frame.name)).collect();
        for stack in &profile.stacks {
            let value = match by {
                By::Live => stack.amount.live_bytes,
                By::Total => stack.amount.total_bytes,
            };
            if value > 0 {
                tree.add(&folded(profile, &short, stack), value);
            }
        }
        tree
    }

    fn add(&mut self, path: &[(Owner, &str)], value: i64) {
        if path.len() > ROWS_MAX {
            self.cut += 1;
        }
        let mut at = 0;
        self.nodes[0].value = self.nodes[0].value.saturating_add(value);
        for (owner, name) in path.iter().take(ROWS_MAX) {
            let next = match self.nodes[at].called.get(*name) {
                Some(next) => *next,
                None => {
                    let next = self.nodes.len();
                    self.nodes.push(Node { owner: *owner, value: 0, called: BTreeMap::new() });
                    self.nodes[at].called.insert((*name).to_owned(), next);
                    next
                }
            };
            self.nodes[next].value = self.nodes[next].value.saturating_add(value);
            at = next;
        }
    }
}

/// A stack as it is drawn, the outermost first. See the module.
fn folded<'a>(
    profile: &Profile,
    short: &'a [String],
    stack: &StackSample,
) -> Vec<(Owner, &'a str)> {
    let mut path: Vec<(Owner, &str)> = Vec::new();
    let mut library = None;
    let mut last = None;
    for number in stack.frames.iter().rev() {
        let (frame, name) = (&profile.frames[*number], short[*number].as_str());
        match frame.owner {
            Owner::Own => {
                // A closure has the name of its function.
                if path.last() != Some(&(Owner::Own, name)) {
                    path.push((Owner::Own, name));
                }
                (library, last) = (None, None);
            }
            Owner::Library => {
                let found = names::crate_of(&frame.name);
                if library == Some(found) {
                    path.pop();
                }
                path.push((Owner::Library, name));
                (library, last) = (Some(found), None);
            }
            Owner::Plumbing | Owner::Allocator => last = last.or(Some((frame.owner, name))),
        }
    }
    path.extend(last);
    path
}

pub(crate) fn draw(profile: &Profile, by: By) -> String {
    let tree = Tree::from_profile(profile, by);
    let mut page = Page { svg: Svg::default(), sum: tree.nodes[0].value, narrow: 0, deepest: 0 };
    let title = table::report(profile, by, 0).title();
    let what = match by {
        By::Live => "live bytes",
        By::Total => "all bytes allocated, freed or not",
    };
    let heading = format!("{} by call site: {what}", profile.head.program);
    page.add_text(MARGIN, 26.0, "ink title", &heading);
    let sampled = format!(
        "process {}: {title}; one allocation sampled in {}",
        profile.head.pid,
        short(profile.head.sample_bytes)
    );
    page.add_text(MARGIN, 45.0, "soft", &sampled);
    let mut x = MARGIN;
    for (class, words) in
        [("own", "the program"), ("lib", "libraries, each as one"), ("std", "standard library")]
    {
        page.svg.rect(class, (x, 54.0), (11.0, 11.0), 0.0);
        page.add_text(x + 16.0, 63.5, "soft", words);
        x += 34.0 + words.chars().count() as f64 * LETTER;
    }
    if page.sum > 0 {
        page.node(&tree, 0, "all", MARGIN, WIDTH - 2.0 * MARGIN, 0);
    } else {
        page.add_text(MARGIN, HEAD + 14.0, "ink", "nothing was sampled");
    }
    let bottom = HEAD + (page.deepest + 1) as f64 * ROW;
    let note = format!(
        "callers above, allocations below; {} functions too narrow to draw, {} stacks too deep to \
         draw to their end",
        page.narrow, tree.cut
    );
    page.add_text(MARGIN, bottom + 18.0, "soft", &note);
    let height = bottom + FOOT;
    page.svg.file((WIDTH, height), STYLE)
}

struct Page {
    svg: Svg,
    sum: i64,
    narrow: usize,
    deepest: usize,
}

impl Page {
    fn add_text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.svg.text(class, (x, y), Anchor::Start, text);
    }

    fn node(&mut self, tree: &Tree, number: usize, name: &str, x: f64, width: f64, depth: usize) {
        let node = &tree.nodes[number];
        self.deepest = self.deepest.max(depth);
        let class = match node.owner {
            Owner::Own => "own",
            Owner::Library => "lib",
            Owner::Plumbing => "std",
            Owner::Allocator => "all",
        };
        let y = HEAD + depth as f64 * ROW;
        let (bytes, share) = (signed(node.value), table::share(node.value, self.sum));
        let title: String = name.chars().take(TITLE_CHARS_MAX).collect();
        // Narrow parts are drawn to a hundredth of a pixel, so that they are adjacent.
        self.svg.raw(format_args!(
            "<g><title>{}\n{bytes}, {share}</title><rect class=\"f {class}\" x=\"{x:.2}\" \
             y=\"{y}\" width=\"{width:.2}\" height=\"{ROW}\"/>",
            XmlEscaped(&title)
        ));
        if let Some(label) = label(name, &bytes, width) {
            self.add_text(x + 4.0, y + 13.5, "ink", &label);
        }
        self.svg.raw(format_args!("</g>"));
        let mut called: Vec<(&String, usize)> =
            node.called.iter().map(|(name, number)| (name, *number)).collect();
        // The widest first; those that are as wide stay in the order of their names.
        called.sort_by_key(|(_, number)| std::cmp::Reverse(tree.nodes[*number].value));
        let mut x = x;
        for (name, number) in called {
            let part = width * (tree.nodes[number].value as f64 / node.value.max(1) as f64);
            if part < NARROWEST {
                self.narrow += 1;
            } else {
                self.node(tree, number, name, x, part, depth + 1);
            }
            x += part;
        }
    }
}

/// The part of a name that fits: the whole with its bytes, its end, or nothing.
fn label(name: &str, bytes: &str, width: f64) -> Option<String> {
    let room = ((width - 8.0) / LETTER).max(0.0) as usize;
    let end = |parts: usize| {
        name.rmatch_indices("::")
            .nth(parts - 1)
            .map_or(name, |(at, separator)| &name[at + separator.len()..])
    };
    let fits = |text: &str| text.chars().count() <= room;
    for candidate in
        [format!("{name}  {bytes}"), format!("{}  {bytes}", end(2)), end(2).into(), end(1).into()]
    {
        if fits(&candidate) {
            return Some(candidate);
        }
    }
    if room < 5 {
        return None;
    }
    let mut start: String = end(1).chars().take(room - 1).collect();
    start.push('\u{2026}');
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::profile;

    #[test]
    fn widths_are_shares_and_runtimes_are_folded() {
        let profile = profile();
        let tree = Tree::from_profile(&profile, By::Live);
        assert_eq!(tree.nodes[0].value, 5 << 20);
        let path = |names: &[&str]| {
            names.iter().fold(&tree.nodes[0], |node, name| &tree.nodes[node.called[*name]]).value
        };
        assert_eq!(path(&["main"]), 5 << 20);
        assert_eq!(path(&["main", "own::index", "alloc::raw_vec::RawVec::grow_one"]), 2 << 20);
        assert_eq!(
            path(&["main", "tokio::runtime::run", "own::read", "library::Buffer::grow"]),
            3 << 20
        );
    }

    #[test]
    fn names_are_text_in_the_picture_and_every_part_is_within_its_caller() {
        let mut profile = profile();
        profile.frames[7].name = "main &\"\u{1}'\n".into();
        for by in [By::Live, By::Total] {
            let text = draw(&profile, by);
            let opened = text.matches("<g>").count();
            assert_eq!(opened, text.matches("</g>").count());
            assert!(opened > 4 && text.contains("main &amp;&quot;&#39;"), "{text}");
            assert!(text.ends_with("</svg>\n") && !text.contains('\u{1}'));
            for part in text.split("<rect class=\"f ").skip(1) {
                let number = |name: &str| -> f64 {
                    part.split(&format!("{name}=\""))
                        .nth(1)
                        .unwrap()
                        .split('"')
                        .next()
                        .unwrap()
                        .parse()
                        .unwrap()
                };
                assert!(
                    number("x") >= MARGIN && number("x") + number("width") <= WIDTH - MARGIN + 0.1
                );
            }
        }
    }

    #[test]
    fn deep_stacks_end_and_many_functions_are_not_all_drawn() {
        let mut profile = profile();
        let frame = profile.frames[2].clone();
        profile.frames = (0..5000)
            .map(|at| crate::profile::Frame { name: format!("own::f{at}"), ..frame.clone() })
            .collect();
        let amount = profile.stacks[0].amount;
        profile.stacks = vec![StackSample { frames: (0..200).collect(), amount }];
        profile.stacks.extend((0..5000).map(|at| StackSample { frames: vec![at], amount }));
        let text = draw(&profile, By::Live);
        assert!(text.contains("1 stacks too deep"), "{}", &text[text.len() - 300..]);
        assert!(text.matches("<rect").count() < 200);
        profile.stacks.clear();
        assert!(draw(&profile, By::Live).contains("nothing was sampled"));
    }

    #[test]
    fn a_label_is_what_fits() {
        let at = |width| label("store::log::Writer::append", "3.0 MiB", width);
        assert_eq!(at(400.0).unwrap(), "store::log::Writer::append  3.0 MiB");
        assert_eq!(at(200.0).unwrap(), "Writer::append  3.0 MiB");
        assert_eq!(at(100.0).unwrap(), "Writer::append");
        assert_eq!(at(50.0).unwrap(), "append");
        assert_eq!(at(42.0).unwrap(), "appe\u{2026}");
        assert_eq!(at(30.0), None);
    }
}
