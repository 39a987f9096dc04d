"""What the release binary costs when it does nothing, and after it has worked."""

import http.client
import json
import unittest

GATEWAY = None
IDLE_KB_MAX = 6 * 1024
AFTER_WORK_KB_MAX = 16 * 1024


class Footprint(unittest.TestCase):
    def test_1_an_idle_gateway_stays_within_six_mebibytes(self):
        resident = GATEWAY.status("VmRSS")
        self.assertLessEqual(resident, IDLE_KB_MAX, f"{resident} kB resident")

    def test_2_work_leaves_nothing_behind(self):
        connection = http.client.HTTPConnection(GATEWAY.gateway)
        headers = {"authorization": f"Bearer {GATEWAY.key}", "content-type": "application/json"}
        for number in range(2000):
            body = {"model": "small", "stream": number % 2 == 0, "messages": [{"role": "user", "content": "x"}]}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            answer.read()
            self.assertEqual(answer.status, 200)
        resident = GATEWAY.status("VmRSS")
        self.assertLessEqual(resident, AFTER_WORK_KB_MAX, f"{resident} kB resident after 2000 requests")
