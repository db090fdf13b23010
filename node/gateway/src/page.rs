//! The operator's page, as this interface answers with it.

use dashboard::page;
use hyper::{
    StatusCode,
    header::{self, HeaderValue},
};

use crate::answer::Answer;

pub(crate) fn answer() -> Answer {
    Answer {
        headers: page::headers().into(),
        ..Answer::new(StatusCode::OK, "text/html; charset=utf-8", page::PAGE)
    }
}

pub(crate) fn redirect() -> Answer {
    Answer {
        headers: vec![(header::LOCATION, HeaderValue::from_static(page::PATH))],
        ..Answer::new(StatusCode::SEE_OTHER, "", "")
    }
}
