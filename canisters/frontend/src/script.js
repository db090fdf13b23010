fetch('/counter', { method: 'POST' })
    .then((answer) => answer.text())
    .then((count) => {
        document.querySelector('#count').textContent = count;
    });
