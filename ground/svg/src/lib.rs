//! Pictures as SVG: shapes with classes, text that stays text, colours for light and dark screens.
//!
//! A picture is a file of its own ([`Svg::file`]), without anything outside it, or a part of a page
//! ([`Svg::part`]) whose style sheet colours it. Lengths are pixels, rounded to a tenth.
//!
//! It must never know what is drawn.

use std::fmt::{self, Write};

/// Colours and sizes of the classes that every file has: `paper`, `ink`, `soft`, `title`, `big`,
/// `grid`, `axis`.
const BASE: &str = include_str!("base.css");

/// Position of a text relative to its point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    #[default]
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

impl Anchor {
    const fn attribute(self) -> &'static str {
        match self {
            Self::Start => "",
            Self::Middle => " text-anchor=\"middle\"",
            Self::End => " text-anchor=\"end\"",
        }
    }
}

/// A picture that is being drawn: later shapes cover earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Svg(String);

impl Svg {
    /// Whatever the other functions have no shape for. The caller escapes text.
    pub fn raw(&mut self, element: fmt::Arguments<'_>) {
        // Writing to a String cannot fail, here and below.
        let _ = self.0.write_fmt(element);
        self.0.push('\n');
    }

    /// From one point to another, both (x, y).
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.raw(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// A rectangle: its upper left corner, its width and height, and how round its corners are.
    pub fn rect(&mut self, class: &str, corner: (f64, f64), size: (f64, f64), round: f64) {
        let ((x, y), (width, height)) = (corner, size);
        self.raw(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\" rx=\"{round}\"/>"
        ));
    }

    /// A disc; `title` is shown when it is pointed at.
    pub fn circle(&mut self, class: &str, middle: (f64, f64), radius: f64, title: Option<&str>) {
        let (x, y) = middle;
        let start =
            format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"");
        match title {
            None => self.raw(format_args!("{start}/>")),
            Some(title) => {
                self.raw(format_args!("{start}><title>{}</title></circle>", XmlEscaped(title)));
            }
        }
    }

    /// A path in SVG's own words.
    pub fn path(&mut self, class: &str, steps: &str) {
        self.raw(format_args!("<path class=\"{class}\" d=\"{steps}\"/>"));
    }

    /// A line of text.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let ((x, y), anchor, text) = (at, anchor.attribute(), XmlEscaped(text));
        self.raw(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}</text>"
        ));
    }

    /// The picture as a file, with a style sheet for its own classes.
    pub fn file(self, (width, height): (f64, f64), style: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\">\n<style>\n{BASE}{style}</style>\n\
             <rect class=\"paper\" width=\"{width:.0}\" height=\"{height:.0}\"/>\n{}</svg>\n",
            self.0
        )
    }

    /// The picture as a part of a page that has a style sheet; `label` is for readers who do not
    /// see it.
    pub fn part(self, (width, height): (f64, f64), label: &str) -> String {
        let (label, shapes) = (XmlEscaped(label), self.0);
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">\n{shapes}</svg>\n"
        )
    }
}

/// Text that means itself in XML and HTML. A line feed becomes a space; what XML does not allow is
/// left out.
#[derive(Clone, Copy, Debug)]
pub struct XmlEscaped<'a>(pub &'a str);

impl fmt::Display for XmlEscaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                '\n' => out.write_char(' ')?,
                '\u{fffe}' | '\u{ffff}' => {}
                letter if letter.is_control() => {}
                letter => out.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        let escaped = XmlEscaped("a<b> & \"c\" 'd'\u{7}\n\u{ffff}").to_string();
        assert_eq!(escaped, "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39; ");
    }

    #[test]
    fn a_file_stands_alone_and_a_part_in_a_page() {
        let mut svg = Svg::default();
        svg.line("axis", (0.0, 1.0), (2.04, 3.0));
        svg.text("ink", (1.0, 2.0), Anchor::End, "<p>");
        svg.circle("dot", (5.0, 6.0), 3.5, Some("\"more\""));
        let shapes = "<line class=\"axis\" x1=\"0.0\" y1=\"1.0\" x2=\"2.0\" y2=\"3.0\"/>\n<text \
                      class=\"ink\" x=\"1.0\" y=\"2.0\" text-anchor=\"end\">&lt;p&gt;</text>\n<circle \
                      class=\"dot\" cx=\"5.0\" cy=\"6.0\" r=\"3.5\"><title>&quot;more&quot;</title></circle>\n";
        let file = svg.clone().file((10.0, 20.0), ".own{fill:red}\n");
        assert!(
            file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 10 20\"")
        );
        assert!(file.contains(".own{fill:red}") && file.contains(".paper{"), "{file}");
        assert!(file.ends_with(&format!("{shapes}</svg>\n")), "{file}");
        let part = svg.part((10.0, 20.0), "a & b");
        let head = "<svg viewBox=\"0 0 10 20\" role=\"img\" aria-label=\"a &amp; b\">\n";
        assert_eq!(part, format!("{head}{shapes}</svg>\n"));
    }
}
