//! JUnit XML, as test runners of most languages write it.
//!
//! A test is named by its class and its name; where the class has no information (it is missing, or
//! `test` as Node's reporter writes), by the enclosing suites. Times of tests that failed or were
//! skipped are not compared: they ended early. Entities that a document declares are not expanded.
//!
//! Bounds: [`DEPTH_MAX`], [`ATTRIBUTE_BYTES_MAX`], values as in `input`.

use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use super::Readings;
use crate::figure::shortened;

/// Deepest nesting of elements.
const DEPTH_MAX: usize = 64;
const ATTRIBUTE_BYTES_MAX: usize = 1 << 16;
/// Most attributes of an element whose attributes are read.
const ATTRIBUTES_MAX: usize = 64;
/// Longest name of a suite that is kept as part of a test's.
const SUITE_BYTES_MAX: usize = 256;

/// The name of the first element.
pub(crate) fn root(text: &str) -> Result<String, String> {
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(start) | Event::Empty(start) => {
                return Ok(start.local_name().as_ref().to_owned());
            }
            Event::Eof => return Err("no element in it".into()),
            _ => {}
        }
    }
}

/// A test that was begun.
struct Case {
    depth: usize,
    name: String,
    seconds: Option<f64>,
    failed: bool,
    skipped: bool,
}

/// Reads a whole report.
pub(crate) fn read(text: &str) -> Result<Readings, String> {
    let mut reader = Reader::from_str(text);
    let mut readings = Readings::default();
    // The open elements: the name of a suite, or `None` for other elements.
    let mut open: Vec<Option<String>> = Vec::new();
    let mut case: Option<Case> = None;
    loop {
        let at = reader.buffer_position();
        let fault = |error: &dyn std::fmt::Display| format!("at byte {at}: {error}");
        match reader.read_event().map_err(|error| fault(&error))? {
            Event::Start(start) => {
                if open.len() >= DEPTH_MAX {
                    return Err(fault(&format!("elements are nested more than {DEPTH_MAX} deep")));
                }
                let suite = begin(&start, &open, &mut case).map_err(|error| fault(&error))?;
                open.push(suite);
            }
            Event::Empty(start) => {
                begin(&start, &open, &mut case).map_err(|error| fault(&error))?;
                if case.as_ref().is_some_and(|case| case.depth == open.len()) {
                    finish(case.take(), &mut readings)?;
                }
            }
            Event::End(_) => {
                open.pop();
                if case.as_ref().is_some_and(|case| case.depth == open.len()) {
                    finish(case.take(), &mut readings)?;
                }
            }
            Event::Eof if open.is_empty() => return Ok(readings),
            Event::Eof => return Err("it ends in the middle; was its writer cut short?".into()),
            _ => {}
        }
    }
}

/// The suite's name, if it is one.
fn begin(
    start: &BytesStart<'_>,
    open: &[Option<String>],
    case: &mut Option<Case>,
) -> Result<Option<String>, String> {
    match (start.local_name().as_ref(), &mut *case) {
        ("testsuite", _) => {
            let [name] = attributes(start, ["name"])?;
            Ok(name.filter(|name| !name.is_empty()).map(|name| shortened(&name, SUITE_BYTES_MAX)))
        }
        ("testcase", None) => {
            let [class, name, time] = attributes(start, ["classname", "name", "time"])?;
            let name = name.ok_or("a test has no name")?;
            let class = class.filter(|class| !class.is_empty() && class != "test");
            let mut parts: Vec<&str> = match &class {
                Some(class) => vec![class],
                None => open.iter().flatten().map(String::as_str).collect(),
            };
            parts.push(&name);
            let seconds = time.as_deref().map(seconds).transpose()?;
            *case = Some(Case {
                depth: open.len(),
                name: parts.join(" > "),
                seconds,
                failed: false,
                skipped: false,
            });
            Ok(None)
        }
        ("testcase", Some(_)) => Err("a test stands inside another".into()),
        ("failure" | "error", Some(case)) => {
            case.failed = true;
            Ok(None)
        }
        ("skipped", Some(case)) => {
            case.skipped = true;
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn finish(case: Option<Case>, readings: &mut Readings) -> Result<(), String> {
    let Some(case) = case else { return Ok(()) };
    match (case.failed, case.skipped, case.seconds) {
        (true, ..) | (_, true, _) => readings.add_incomplete(&case.name, case.failed),
        (_, _, Some(seconds)) => readings.add(&case.name, seconds, "s", None),
        // Some runners give no time for what took none.
        (_, _, None) => readings.add_without_time(&case.name),
    }
}

/// `1.5`, and `1,234.5` as some runners write in some languages.
fn seconds(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let plain: String = match text.split_once('.') {
        Some((whole, _)) if whole.contains(',') => text.chars().filter(|c| *c != ',').collect(),
        _ => text.to_owned(),
    };
    plain.parse().map_err(|_| format!("the time {:?} is no number", shortened(text, 40)))
}

fn attributes<const N: usize>(
    start: &BytesStart<'_>,
    names: [&str; N],
) -> Result<[Option<String>; N], String> {
    let mut found = [const { None }; N];
    for (count, attribute) in start.attributes().with_checks(false).enumerate() {
        if count >= ATTRIBUTES_MAX {
            return Err(format!("an element has more than {ATTRIBUTES_MAX} attributes"));
        }
        let attribute = attribute.map_err(|error| error.to_string())?;
        let position = names.iter().position(|name| attribute.key.as_ref() == *name);
        let Some(place) = position.and_then(|position| found.get_mut(position)) else { continue };
        if attribute.value.len() > ATTRIBUTE_BYTES_MAX {
            return Err(format!("an attribute is longer than {ATTRIBUTE_BYTES_MAX} bytes"));
        }
        // Knows XML's five entities and no others: declarations of a document are ignored.
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|error| error.to_string())?;
        *place = Some(value.into_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(String, Option<f64>)> {
        read(text).unwrap().list.into_iter().map(|reading| (reading.name, reading.value)).collect()
    }

    #[test]
    fn suites_name_a_test_where_its_class_does_not() {
        let text = r#"<?xml version="1.0"?><testsuites>
            <testsuite name="pytest"><testcase classname="a.B" name="one" time="0.5"/></testsuite>
            <testsuite name="outer"><testsuite name="inner">
                <testcase name="two &lt;3&gt;" classname="test" time="1,234.5"><system-out>x</system-out></testcase>
            </testsuite></testsuite>
            </testsuites>"#;
        assert_eq!(
            names(text),
            [("a.B > one".into(), Some(0.5)), ("outer > inner > two <3>".into(), Some(1234.5))]
        );
    }

    #[test]
    fn times_of_failed_and_skipped_tests_do_not_count() {
        let text = r#"<testsuite><testcase name="a" time="9"><failure>x</failure></testcase>
            <testcase name="b" time="0"><skipped/></testcase><testcase name="c"/></testsuite>"#;
        let readings = read(text).unwrap();
        assert_eq!((readings.failed, readings.skipped), (1, 1));
        assert!(readings.list.iter().all(|reading| reading.value.is_none()));
    }

    #[test]
    fn entities_of_a_document_are_not_expanded() {
        let bomb = r#"<!DOCTYPE t [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">
            <!ENTITY e SYSTEM "file:///etc/passwd">]>
            <testsuite><testcase name="&b;" time="1"/></testsuite>"#;
        let fault = read(bomb).unwrap_err();
        assert!(fault.contains("unrecognized entity"), "{fault}");
        let inside = r#"<!DOCTYPE t [<!ENTITY b "x">]>
            <testsuite><testcase name="n" time="1"><system-out>&b;</system-out></testcase></testsuite>"#;
        assert_eq!(names(inside), [("n".into(), Some(1.0))]);
    }

    #[test]
    fn damage_is_named_with_its_place() {
        for (text, words) in [
            (r#"<testsuite><testcase name="a" time="soon"/></testsuite>"#, "\"soon\" is no number"),
            (r#"<testsuite><testcase name="a" time="1"/>"#, "ends in the middle"),
            (r#"<testsuite><testcase time="1"/></testsuite>"#, "has no name"),
            (
                r#"<testsuite><testcase name="a"><testcase name="b"/></testcase></testsuite>"#,
                "inside another",
            ),
            (r#"<testsuite></testsuites>"#, "at byte"),
        ] {
            let fault = read(text).unwrap_err();
            assert!(fault.contains(words), "{fault:?} instead of {words:?}");
        }
        let deep = "<testsuite>".repeat(1000);
        assert!(read(&deep).unwrap_err().contains("more than 64 deep"));
    }
}
